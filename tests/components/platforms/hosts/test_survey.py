"""Tests for the survey of a host, with a folder as its root and fake commands."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.components.platforms.recording import ROOT

pytestmark = pytest.mark.engine

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
    "DRIVER": "",
    "DRIVER_FROM": "image",
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
NO_INCLUDE = "#Include /etc/ssh/sshd_config.d/*.conf\n"
GPUS = {"GPUS": "8", "GPU_TYPE": "h100"}
INSTALL = {**GPUS, "DRIVER": "580.1", "DRIVER_FROM": "install"}
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
NVSWITCH = {"proc/driver/nvidia-nvswitch/devices/0000:05:00.0": "", "sys/module/nvidia/version": "580.1\n"}
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
    """Run the survey with the given files, fake commands and parameters."""
    for path, text in (FILES | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text.replace("ROOT", str(root)))
    # Functions are used instead of programs, which take longer to start.
    commands = [f"{name}() ( {body or ':'}\n)\n" for name, body in (ANSWERS | answers).items()]
    text = re.sub(rf"(?<![\w.}}/])/({FOLDERS})/", rf"{root}/\1/", SURVEY)
    text = text.replace("((EUID == 0))", "true").replace('(exec 3<>"/dev/tcp/$PLAN_PRIVATE_IP/22")', "true")
    environment = {"PATH": os.environ["PATH"]} | {f"PLAN_{name}": value for name, value in (PLAN | plan).items()}
    script = "".join([*commands, 'timeout() { shift; "$@"; }\n', text])
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=30
    )


@pytest.mark.parametrize(
    ("files", "answers", "plan"),
    [
        ({}, {}, {}),
        (NVSWITCH, {}, GPUS),
        ({**port("mlx5_0"), **port("mlx5_1")}, {}, RDMA),
        # The cluster's own files and accounts are not conflicts.
        ({**OURS, **OUR_DATABASE}, {"systemctl": "exit 0", "getent": "echo x:x:2000:"}, {}),
        ({"etc/slurm/slurm.conf": ""}, {}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"systemctl": "exit 0", "squeue": ""}, {"SCHEDULER": "none"}),
        (HAD_SLURM, {"squeue": "echo 7"}, {}),
        (HAD_NONE, {}, {}),
        ({}, {"getent": "[[ $* == 'group ops' || $* == 'group 1500' ]] && echo ops:x:1500:"}, {}),
        ({}, {"sshd": "echo allowusers ops@10.0.0.4; echo allowusers trainer; echo denygroups bob"}, {}),
        ({}, {"sshd": "echo authenticationmethods any; echo authorizedkeysfile .ssh/authorized_keys x"}, {}),
        ({"etc/ssh/sshd_config": "Include /etc/ssh/sshd_config.d/*.conf\n"}, {}, {}),
        ({}, {"systemctl": MARIADB}, {"SCHEDULER": "none"}),
        ({}, {"systemctl": MARIADB}, {"ROLE": "worker"}),
        ({**HAD_NONE, **OUR_DATABASE}, {"systemctl": MARIADB}, {}),
        ({"proc/fs/nfsd/versions": "+3 +4 +4.1 +4.2\n"}, {"systemctl": NFS}, {}),
        ({**roce("rocep1"), **roce("rocep2", "1: DOWN")}, {}, ROCE),
        ({}, {}, {"SHARED_GIB": "400"}),
        ({}, {"docker": ""}, {**FAKE_GPUS, "CONTAINERS": "docker"}),
        ({}, {"nvidia-smi": "exit 9"}, INSTALL),
        ({"sys/module/nvidia/version": "580.1\n"}, {}, INSTALL),
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
        "files of the cluster included",
        "database and no Slurm",
        "database on a worker",
        "database of ours",
        "NFS server",
        "RoCE",
        "enough space",
        "docker",
        "no driver yet",
        "installed driver",
    ],
)
def test_a_suitable_host_is_accepted(
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
OTHER_ADDRESS = "[[ $* != *global* ]] || echo '2: e inet 10.9.9.9/8'"
CONFLICTS: list[tuple[str, dict[str, str], dict[str, str], dict[str, str]]] = [
    ("runs debian-12, but cluster.platform.image is for", {"etc/os-release": "ID=debian\nVERSION_ID=12\n"}, {}, {}),
    ("processors, but own has 9999", {}, {}, {"CPUS": "9999"}),
    ("of memory, but jobs on own can use 999999999", {}, {}, {"MEMORY_MIB": "999999999"}),
    ("has 8 GPUs of type h100 (8 NVIDIA H100 80GB HBM3), but own has 4", {}, {}, {**GPUS, "GPUS": "4"}),
    ("has 0 GPUs of type a100", {}, {}, {**GPUS, "GPU_TYPE": "a100"}),
    ("nvidia-smi fails", {}, {"nvidia-smi": "exit 9"}, GPUS),
    ("driver 580.1 but fabric manager 570.2", NVSWITCH, {"nv-fabricmanager": "echo 'version is : 570.2'"}, GPUS),
    (
        "has no network interface with the address 10.0.0.7",
        {},
        {"ip": OTHER_ADDRESS},
        {},
    ),
    ("10.0.0.7 is on eth1, not on ib0", {}, {}, {"INTERFACE": "ib0"}),
    ("has 1 InfiniBand RDMA ports that are up, but own has 2", {**port("a"), **port("b", state="1: DOWN")}, {}, RDMA),
    ("has 1 InfiniBand RDMA ports that are up", {**port("a"), **port("b", layer="Ethernet")}, {}, RDMA),
    ("is on eth1, which is InfiniBand, but own declares ethernet", IPOIB, {}, {}),
    ("/etc/hosts contains the address 10.1.1.1 for node1", {"etc/hosts": "10.1.1.1 x node1\n"}, {}, {}),
    ("already has a user ops (uid 1001)", {}, {"getent": "[[ $2 == ops ]] && echo ops:x:1001:"}, {}),
    ("uid 2000 belongs to bob", {}, {"getent": "[[ $* == 'passwd 2000' ]] && echo bob:x:2000:"}, {}),
    ("already has a group trainer (gid 1005)", {}, {"getent": "[[ $* == 'group trainer' ]] && echo t:x:1005:"}, {}),
    ("not let ops log in with its SSH key (allowusers bob trainer)", {}, {"sshd": ALLOWS}, {}),
    ("not let trainer log in with its SSH key (denygroups trainer)", {}, {"sshd": "echo denygroups trainer"}, {}),
    ("let ops log in with its SSH key (authenticationmethods publickey,password)", {}, {"sshd": METHODS}, {}),
    ("let ops log in with its SSH key (authorizedkeysfile /etc/keys/%u)", {}, {"sshd": CENTRAL}, {}),
    (
        "let ops log in with its SSH key (allowusers ops@10.9.9.9)",
        {},
        {"sshd": "echo allowusers ops@10.9.9.9"},
        {},
    ),
    ("does not include /etc/ssh/sshd_config.d/*.conf", {"etc/ssh/sshd_config": NO_INCLUDE}, {}, {}),
    ("`sshd -T` fails (line 3: bad)", {}, {"sshd": "echo 'line 3: bad' >&2; exit 255"}, {}),
    ("has 2 GPUs in MIG mode", {}, {"nvidia-smi": MIG}, GPUS),
    ("runs NVIDIA driver 535.1", {"sys/module/nvidia/version": "535.1\n"}, {"nvidia-smi": "exit 9"}, INSTALL),
    (
        "/var has 12 MiB free, but the bring-up needs 2048",
        {},
        {"df": FULL},
        {},
    ),
    (
        "the disk of /shared (/) has 400 GiB free, but cluster.storage.shared.size_gib is 1200",
        {},
        {},
        {"SHARED_GIB": "1200"},
    ),
    ("/var/lib/mysql contains databases (wiki)", {"var/lib/mysql/wiki/x": "", "var/lib/mysql/mysql/x": ""}, {}, {}),
    ("runs a database server (mariadb)", HAD_NONE, {"systemctl": MARIADB}, {}),
    ("does not support NFS 4.2 (+3 +4 -4.2)", {"proc/fs/nfsd/versions": "+3 +4 -4.2\n"}, {"systemctl": NFS}, {}),
    ("/etc/exports uses fsid=0 fsid=1", {"proc/fs/nfsd/versions": "+4.2 \n", **EXPORTS}, {"systemctl": NFS}, {}),
    ("has 0 Ethernet RDMA ports that are up among rocep1, but own has 1", roce("rocep2"), {}, ROCE),
    ("has /shared in /shared, but the stack file now has /raid/t", HAD_SLURM, {}, {"SHARED_FOLDER": "/raid/t"}),
    ("runs Slurm for another cluster (slurmd)", {}, {"systemctl": SLURMD}, {"SCHEDULER": "none"}),
    ("slurm.conf from another cluster", {"etc/slurm/slurm.conf": ""}, {}, {}),
    ("runs a database server (mysql)", {}, {"systemctl": MYSQL}, {}),
    ("/shared is already mounted (nfs4 other:/x)", {}, {"findmnt": MOUNTED}, {}),
    ("/home is a network file system (nfs4)", {}, {"findmnt": "[[ $* == *-T* ]] && echo nfs4"}, {}),
    ("/etc/exports already contains a line for /home", {"etc/exports": "/home *(rw)\n"}, {}, {}),
    ("belongs to the cluster b", {**OURS, "var/lib/trainyard/borrowed/cluster": "b\n"}, {}, {}),
    ("is the cluster's head and would become its worker", OURS, {}, {"ROLE": "worker"}),
    ("has jobs (7 9), which would not be in the queue of scheduler: none", HAD_SLURM, JOBS, {"SCHEDULER": "none"}),
    ("has jobs (unknown: squeue fails)", HAD_SLURM, SILENT, {"SCHEDULER": "none"}),
    ("has no NVIDIA container toolkit", NVSWITCH, {"docker": ""}, {**GPUS, "CONTAINERS": "docker"}),
    ("has no enroot", {}, {}, {"CONTAINERS": "enroot"}),
    ("has no folder /nodisk42 for cluster.storage.shared.path", {}, {}, {"SHARED_FOLDER": "/nodisk42/trainyard"}),
]


@pytest.mark.parametrize(("words", "files", "answers", "plan"), CONFLICTS, ids=[case[0][:40] for case in CONFLICTS])
def test_a_conflict_is_reported_with_host_and_fix(
    tmp_path: Path, words: str, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> None:
    done = survey(tmp_path, files, answers, plan)
    assert done.returncode == 1
    found = [line for line in done.stderr.replace(str(tmp_path), "").splitlines() if words in line]
    assert len(found) == 1, done.stderr
    assert re.fullmatch(r"host node1: .+\. Fix: .+\.", found[0])


def test_all_conflicts_are_reported_at_once(tmp_path: Path) -> None:
    done = survey(tmp_path, {"etc/exports": "/shared *(rw)\n"}, {"systemctl": SLURMD}, {"CPUS": "9999"})
    assert len(done.stderr.splitlines()) == 3


def test_undeclared_infiniband_is_reported_without_conflict(tmp_path: Path) -> None:
    done = survey(tmp_path, port("mlx5_0"), {}, {})
    assert done.returncode == 0
    assert "1 InfiniBand ports are up but unused, because fabric ethernet is declared" in done.stdout


def test_running_jobs_refuse_a_change_to_slurm(tmp_path: Path) -> None:
    for path, text in HAD_NONE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with (tmp_path / "shared/jobs/.nodes/node-node2").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = survey(tmp_path, {}, {}, {})
    assert done.returncode == 1
    assert "has jobs (node-node2), which would not be in the queue of scheduler: slurm. Fix: " in done.stderr


def test_additional_rdma_ports_are_noted(tmp_path: Path) -> None:
    done = survey(tmp_path, {**port("mlx5_0"), **port("mlx5_1"), **port("mlx5_2")}, {}, RDMA)
    assert done.returncode == 0
    assert "note: 3 InfiniBand RDMA ports are up, but own has 2: if storage uses some" in done.stdout


def test_persistence_mode_and_missing_time_daemon_are_noted(tmp_path: Path) -> None:
    off = "for n in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100, [N/A], Disabled'; done"
    done = survey(tmp_path, {}, {"nvidia-smi": off}, GPUS)
    assert done.returncode == 0
    assert "note: persistence mode is off on 8 GPUs" in done.stdout
    assert "note: no time daemon runs" in done.stdout
