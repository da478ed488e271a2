"""The survey of a host, on a folder in its place with commands that answer as told: what it refuses, and its words."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
SURVEY = "".join((NODE / name).read_text() for name in ("survey-login", "survey-storage", "survey"))
FOLDERS = "etc|sys|run|shared|var/lib|proc/driver|proc/fs"
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
    "HEAD_IP": "10.0.0.4",
    "RDMA_DEVICES": "",
    "SHARED_FOLDER": "",
    "SHARED_GIB": "0",
    "CONTAINERS": "none",
}
GPUS = {"GPUS": "8", "GPU_TYPE": "h100"}
FAKE_GPUS = {"GPUS": "2", "GPU_TYPE": "fake"}
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
    "nvidia-smi": "for n in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100 80GB HBM3, Disabled, Enabled'; done",
    "df": "echo head; echo /dev/sda1 999999 1 409600 1% /",
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


def roce(name: str, state: str = "4: ACTIVE") -> dict[str, str]:
    return port(name, "Ethernet", state)


ROCE = {"FABRIC": "roce", "RDMA": "1", "RDMA_DEVICES": "rocep1"}
MARIADB = "[[ $* == *mariadb ]]"
NFS = "[[ $* == *nfs-server ]]"
OUR_DATABASE = {
    "var/lib/trainyard/borrowed/notes": "ROOT/etc/systemd/system/mariadb.service.d/trainyard.conf\tabsent\n",
    "var/lib/mysql/slurm_acct_db/x": "",
}
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
        (root / path).write_text(text.replace("ROOT", str(root)))
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
        ({**OURS, **OUR_DATABASE}, {"systemctl": "exit 0", "getent": "echo x:x:2000:"}, {}),
        ({"etc/slurm/slurm.conf": ""}, {}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"systemctl": "exit 0", "squeue": ""}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"squeue": "echo 7"}, {}),
        (HAD_NONE, {}, {}),
        ({}, {"getent": "[[ $* == 'group ops' || $* == 'group 1500' ]] && echo ops:x:1500:"}, {}),
        ({}, {"sshd": "echo allowusers ops@10.0.0.4; echo allowusers trainer; echo denygroups bob"}, {}),
        ({}, {"sshd": "echo authenticationmethods any; echo authorizedkeysfile .ssh/authorized_keys x"}, {}),
        ({}, {"systemctl": MARIADB}, {"SCHEDULER": "none"}),
        ({}, {"systemctl": MARIADB}, {"ROLE": "worker"}),
        ({**HAD_NONE, **OUR_DATABASE}, {"systemctl": MARIADB}, {}),
        ({"proc/fs/nfsd/versions": "+3 +4 +4.1 +4.2\n"}, {"systemctl": NFS}, {}),
        ({**roce("rocep1"), **roce("rocep2", "1: DOWN")}, {}, ROCE),
        ({}, {}, {"SHARED_GIB": "400"}),
        ({}, {"docker": ""}, {**FAKE_GPUS, "CONTAINERS": "docker"}),
    ],
    ids=[
        "plain",
        "gpus",
        "infiniband",
        "ours",
        "no scheduler",
        "no longer Slurm",
        "Slurm as before",
        "Slurm now",
        "group of the right number",
        "allowed to log in",
        "keys at home",
        "database and no Slurm",
        "database on a worker",
        "database of ours",
        "NFS server",
        "RoCE",
        "enough space",
        "docker",
    ],
)
def test_a_host_as_it_should_be_may_be_taken(
    tmp_path: Path, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> None:
    done = survey(tmp_path, files, answers, plan)
    assert (done.returncode, done.stderr) == (0, "")


ALLOWS = "echo allowusers bob; echo allowusers trainer"
METHODS = "[[ $* == *user=trainer* ]] || echo authenticationmethods publickey,password"
CENTRAL = "[[ $* == *user=trainer* ]] || echo authorizedkeysfile /etc/keys/%u"
MIG = 'for mode in {Dis,Dis,Dis,Dis,Dis,Dis,En,En}abled; do echo "NVIDIA H100, $mode, Enabled"; done'
FULL = "echo head; [[ ${!#} == /var ]] && echo d 9 9 12 || echo d 9 9 9999"
EXPORTS = {"etc/exports": "/srv *(rw,fsid=0)\n/x *(ro,fsid=1)\n/y *(fsid=12)\n"}
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
    ("shows 1 InfiniBand RDMA ports that are up, own has 2", {**port("a"), **port("b", state="1: DOWN")}, {}, RDMA),
    ("shows 1 InfiniBand RDMA ports that are up", {**port("a"), **port("b", layer="Ethernet")}, {}, RDMA),
    ("is on eth1, which is InfiniBand, and own declares ethernet", IPOIB, {}, {}),
    ("/etc/hosts gives node1 the address 10.1.1.1", {"etc/hosts": "10.1.1.1 x node1\n"}, {}, {}),
    ("has a user ops already (uid 1001)", {}, {"getent": "[[ $2 == ops ]] && echo ops:x:1001:"}, {}),
    ("uid 2000 is bob's", {}, {"getent": "[[ $* == 'passwd 2000' ]] && echo bob:x:2000:"}, {}),
    ("has a group trainer already (gid 1005)", {}, {"getent": "[[ $* == 'group trainer' ]] && echo t:x:1005:"}, {}),
    ("not let ops log in with a key of its own (allowusers bob trainer)", {}, {"sshd": ALLOWS}, {}),
    ("not let trainer log in with a key of its own (denygroups trainer)", {}, {"sshd": "echo denygroups trainer"}, {}),
    ("let ops log in with a key of its own (authenticationmethods publickey,password)", {}, {"sshd": METHODS}, {}),
    ("let ops log in with a key of its own (authorizedkeysfile /etc/keys/%u)", {}, {"sshd": CENTRAL}, {}),
    (
        "let ops log in with a key of its own (allowusers ops@10.9.9.9)",
        {},
        {"sshd": "echo allowusers ops@10.9.9.9"},
        {},
    ),
    ("`sshd -T` fails (line 3: bad)", {}, {"sshd": "echo 'line 3: bad' >&2; exit 255"}, {}),
    ("has 2 GPUs in MIG mode", {}, {"nvidia-smi": MIG}, GPUS),
    (
        "/var has 12 MiB free, the bring-up needs 2048",
        {},
        {"df": FULL},
        {},
    ),
    (
        "the disk of /shared (/) has 400 GiB free, cluster.storage.shared.size_gib asks for 1200",
        {},
        {},
        {"SHARED_GIB": "1200"},
    ),
    ("/var/lib/mysql holds databases (wiki)", {"var/lib/mysql/wiki/x": "", "var/lib/mysql/mysql/x": ""}, {}, {}),
    ("a database server runs here (mariadb)", HAD_NONE, {"systemctl": MARIADB}, {}),
    ("does not speak NFS 4.2 (+3 +4 -4.2)", {"proc/fs/nfsd/versions": "+3 +4 -4.2\n"}, {"systemctl": NFS}, {}),
    ("/etc/exports uses fsid=0 fsid=1", {"proc/fs/nfsd/versions": "+4.2 \n", **EXPORTS}, {"systemctl": NFS}, {}),
    ("shows 0 Ethernet RDMA ports that are up among rocep1, own has 1", roce("rocep2"), {}, ROCE),
    ("keeps /shared in /shared, and the stack file now names /raid/t", HAD_SLURM, {}, {"SHARED_FOLDER": "/raid/t"}),
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
    ("has no NVIDIA container toolkit", NVSWITCH, {"docker": ""}, {**GPUS, "CONTAINERS": "docker"}),
    ("has no enroot", {}, {}, {"CONTAINERS": "enroot"}),
    ("has no folder /nodisk42 for cluster.storage.shared.path", {}, {}, {"SHARED_FOLDER": "/nodisk42/trainyard"}),
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


def test_more_ports_than_the_machine_type_has_are_told(tmp_path: Path) -> None:
    done = survey(tmp_path, {**port("mlx5_0"), **port("mlx5_1"), **port("mlx5_2")}, {}, RDMA)
    assert done.returncode == 0
    assert "note: 3 InfiniBand RDMA ports are up and own has 2: if some lead to storage" in done.stdout


def test_persistence_mode_and_a_clock_that_is_not_kept_are_told(tmp_path: Path) -> None:
    off = "for n in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100, [N/A], Disabled'; done"
    done = survey(tmp_path, {}, {"nvidia-smi": off}, GPUS)
    assert done.returncode == 0
    assert "note: persistence mode is off on 8 GPUs" in done.stdout
    assert "note: no time daemon runs" in done.stdout
