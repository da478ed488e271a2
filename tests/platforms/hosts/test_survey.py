"""The survey of a host, on a folder in its place with commands that answer as told: what it refuses, and its words."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.platforms.recording import ROOT

SURVEY = (ROOT / "components" / "platforms" / "hosts" / "node" / "survey").read_text()
FOLDERS = "etc|sys|run|shared|var/lib|proc/driver"
PLAN = {
    "CLUSTER": "c",
    "NODE": "node1",
    "ROLE": "head",
    "SCHEDULER": "slurm",
    "OS": "ubuntu-24.04",
    "MACHINE": "own",
    "CPUS": "1",
    "MEMORY_MIB": "1",
    "GPUS": "0",
    "GPU_TYPE": "",
    "FABRIC": "ethernet",
    "RDMA": "0",
    "PRIVATE_IP": "10.0.0.7",
    "INTERFACE": "",
}
GPUS = {"GPUS": "8", "GPU_TYPE": "h100"}
RDMA = {"FABRIC": "infiniband", "RDMA": "2"}
ANSWERS = {
    "ip": "echo '2: eth1    inet 10.0.0.7/24 scope global eth1'",
    "systemctl": "exit 3",
    "getent": "exit 2",
    "sshd": "echo 'port 22'",
    "findmnt": "[[ $* != *-T* ]] || { echo ext4; exit 0; }; exit 1",
    "sudo": "",
    "python3": "",
    "id": "echo tester",
    "nvidia-smi": "for n in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100 80GB HBM3'; done",
    "nv-fabricmanager": "echo 'Fabric Manager version is : 580.1'",
}
FILES = {
    "etc/os-release": "ID=ubuntu\nVERSION_ID=24.04\n",
    "etc/hosts": "127.0.1.1 node1\n10.0.0.7 node1\n",
    "sys/class/net/eth1/type": "1\n",
    "run/systemd/system/.keep": "",
}


def port(name: str, layer: str = "InfiniBand", state: str = "4: ACTIVE") -> dict[str, str]:
    folder = f"sys/class/infiniband/{name}/ports/1"
    return {f"{folder}/link_layer": f"{layer}\n", f"{folder}/state": f"{state}\n"}


NVSWITCH = {"proc/driver/nvidia-nvswitch/devices/.keep": "", "sys/module/nvidia/version": "580.1\n"}
OURS = {"var/lib/trainyard/borrowed/cluster": "c\n", "var/lib/trainyard/borrowed/role": "head\n"}
HAD_SLURM = {**OURS, "etc/trainyard/node.env": "TRAINYARD_GPUS=8\nTRAINYARD_SCHEDULER=slurm\n"}
HAD_NONE = {
    **OURS,
    "etc/trainyard/node.env": "TRAINYARD_SCHEDULER=none\n",
    "shared/jobs/.nodes/node-node1": "",
    "shared/jobs/.nodes/node-node2": "",
}


def survey(
    root: Path, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the survey on a host of these files, whose commands answer so."""
    for path, text in (FILES | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    programs = root / "programs"
    programs.mkdir()
    for name, body in (ANSWERS | answers).items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    text = re.sub(rf"(?<![\w.}}/])/({FOLDERS})/", rf"{root}/\1/", SURVEY)
    text = text.replace("((EUID == 0))", "true").replace('(exec 3<>"/dev/tcp/$BORROW_PRIVATE_IP/22")', "true")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | {
        f"BORROW_{name}": value for name, value in (PLAN | plan).items()
    }
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, env=environment, timeout=30
    )


@pytest.mark.parametrize(
    ("files", "answers", "plan"),
    [
        ({}, {}, {}),
        (NVSWITCH, {}, GPUS),
        ({**port("mlx5_0"), **port("mlx5_1")}, {}, RDMA),
        # What the cluster itself brought is no conflict.
        (OURS, {"systemctl": "exit 0", "getent": "echo x:x:2000:"}, {}),
        ({"etc/slurm/slurm.conf": ""}, {}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"systemctl": "exit 0", "squeue": ""}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"squeue": "echo 7"}, {}),
        (HAD_NONE, {}, {}),
    ],
    ids=["plain", "gpus", "infiniband", "ours", "no scheduler", "no longer Slurm", "Slurm as before", "Slurm now"],
)
def test_a_host_as_it_should_be_may_be_taken(
    tmp_path: Path, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> None:
    done = survey(tmp_path, files, answers, plan)
    assert (done.returncode, done.stderr) == (0, "")


IPOIB = {"sys/class/net/eth1/type": "32\n"}
SLURMD = "[[ $* == *slurmd ]]"
MYSQL = "[[ $* == *mysql ]]"
JOBS = {"systemctl": "exit 0", "squeue": "echo 7; echo 9"}
SILENT = {"systemctl": "exit 0", "squeue": "exit 1"}
MOUNTED = "[[ $* == *-T* ]] && echo ext4 || { [[ $* == *shared ]] && echo nfs4 other:/x; }"
CONFLICTS: list[tuple[str, dict[str, str], dict[str, str], dict[str, str]]] = [
    ("runs debian-12, and cluster.platform.image is for", {"etc/os-release": "ID=debian\nVERSION_ID=12\n"}, {}, {}),
    ("processors, own has 9999", {}, {}, {"CPUS": "9999"}),
    ("of memory, jobs on own are promised 999999999", {}, {}, {"MEMORY_MIB": "999999999"}),
    ("has 8 GPUs of type h100 (8 NVIDIA H100 80GB HBM3), own has 4", {}, {}, {**GPUS, "GPUS": "4"}),
    ("has 0 GPUs of type a100", {}, {}, {**GPUS, "GPU_TYPE": "a100"}),
    ("nvidia-smi does not answer", {}, {"nvidia-smi": "exit 9"}, GPUS),
    ("driver 580.1 and fabric manager 570.2", NVSWITCH, {"nv-fabricmanager": "echo 'version is : 570.2'"}, GPUS),
    ("has no card with the address 10.0.0.7", {}, {"ip": "[[ $* != *global* ]] || echo '2: e inet 10.9.9.9/8'"}, {}),
    ("10.0.0.7 is on eth1, not on ib0", {}, {}, {"INTERFACE": "ib0"}),
    ("shows 1 InfiniBand ports that are up, own has 2", {**port("a"), **port("b", state="1: DOWN")}, {}, RDMA),
    ("shows 1 InfiniBand ports that are up", {**port("a"), **port("b", layer="Ethernet")}, {}, RDMA),
    ("is on eth1, which is InfiniBand, and own declares ethernet", IPOIB, {}, {}),
    ("/etc/hosts gives node1 the address 10.1.1.1", {"etc/hosts": "10.1.1.1 x node1\n"}, {}, {}),
    ("has a user ops already (uid 1001)", {}, {"getent": "[[ $2 == ops ]] && echo ops:x:1001:"}, {}),
    ("uid 2000 is bob's", {}, {"getent": "[[ $* == 'passwd 2000' ]] && echo bob:x:2000:"}, {}),
    ("sshd_config restricts who may log in (allowusers bob)", {}, {"sshd": "echo allowusers bob"}, {}),
    ("another Slurm runs here (slurmd)", {}, {"systemctl": SLURMD}, {"SCHEDULER": "none"}),
    ("slurm.conf of another Slurm", {"etc/slurm/slurm.conf": ""}, {}, {}),
    ("a database server runs here (mysql)", {}, {"systemctl": MYSQL}, {}),
    ("/shared is mounted already (nfs4 other:/x)", {}, {"findmnt": MOUNTED}, {}),
    ("/home is mounted from elsewhere (nfs4)", {}, {"findmnt": "[[ $* == *-T* ]] && echo nfs4"}, {}),
    ("/etc/exports has a line for /home already", {"etc/exports": "/home *(rw)\n"}, {}, {}),
    ("belongs to the cluster b", {**OURS, "var/lib/trainyard/borrowed/cluster": "b\n"}, {}, {}),
    ("is the cluster's head and would become its worker", OURS, {}, {"ROLE": "worker"}),
    ("has jobs (7 9), and scheduler: none", HAD_SLURM, JOBS, {"SCHEDULER": "none"}),
    ("has jobs (slurmctld does not say which)", HAD_SLURM, SILENT, {"SCHEDULER": "none"}),
]


@pytest.mark.parametrize(("words", "files", "answers", "plan"), CONFLICTS, ids=[case[0][:40] for case in CONFLICTS])
def test_a_conflict_is_named_with_its_host_and_a_fix(
    tmp_path: Path, words: str, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> None:
    done = survey(tmp_path, files, answers, plan)
    assert done.returncode == 1
    found = [line for line in done.stderr.replace(str(tmp_path), "").splitlines() if words in line]
    assert len(found) == 1, done.stderr
    assert re.fullmatch(r"host node1: .+\. Fix: .+\.", found[0])


def test_all_conflicts_are_told_at_once(tmp_path: Path) -> None:
    done = survey(tmp_path, {"etc/exports": "/shared *(rw)\n"}, {"systemctl": SLURMD}, {"CPUS": "9999"})
    assert len(done.stderr.splitlines()) == 3


def test_infiniband_that_a_host_shows_and_the_stack_does_not_declare_is_told_and_no_conflict(tmp_path: Path) -> None:
    done = survey(tmp_path, port("mlx5_0"), {}, {})
    assert done.returncode == 0
    assert "1 InfiniBand ports are up and stay unused: fabric ethernet is declared" in done.stdout


def test_jobs_without_a_scheduler_stand_in_the_way_of_slurm(tmp_path: Path) -> None:
    for path, text in HAD_NONE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with (tmp_path / "shared/jobs/.nodes/node-node2").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = survey(tmp_path, {}, {}, {})
    assert done.returncode == 1
    assert "has jobs (node-node2), and scheduler: slurm would not know of them. Fix: " in done.stderr
