"""Tests for the survey of a host, with a folder as its root and fake commands, and for the test of its connections."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.components.platforms.hosts.test_give_back import NODE, load

pytestmark = pytest.mark.engine

SURVEY = "".join((NODE / name).read_text() for name in ("survey-login", "survey-storage", "survey"))
FOLDERS = "etc|sys|run|shared|var/lib|proc/driver|proc/fs"
PLAN = """
CLUSTER=c NODE=node1 ROLE=head SCHEDULER=slurm OS=ubuntu-24.04 MACHINE=own CPUS=1 MEMORY_MIB=1 GPUS=0 GPU_TYPE= DRIVER=
DRIVER_FROM=image FABRIC=ethernet RDMA=0 PRIVATE_IP=10.0.0.7 INTERFACE= HEAD_IP=10.0.0.4 RDMA_DEVICES= SHARED_FOLDER=
SHARED_GIB=0 CONTAINERS=none
"""
"""Parameters of a survey without the prefix PLAN_. Cases replace values."""
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


ROCE = {"FABRIC": "roce", "RDMA": "1", "RDMA_DEVICES": "rocep1"}
MARIADB = "[[ $* == *mariadb ]]"
NFS = "[[ $* == *nfs-server ]]"
OUR_DATABASE = {
    "var/lib/trainyard/borrowed/notes": "ROOT/etc/systemd/system/mariadb.service.d/trainyard.conf\tabsent\n",
    "var/lib/mysql/slurm_acct_db/x": "",
}
OUR_GROUP = "[[ $* == 'group ops' || $* == 'group 1500' ]] && echo ops:x:1500:"
ALLOWED = "echo allowusers ops@10.0.0.4; echo allowusers trainer; echo denygroups bob"
AT_HOME = "echo authenticationmethods any; echo authorizedkeysfile .ssh/authorized_keys x"
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
    for path, text in (FILES | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text.replace("ROOT", str(root)))
    # Functions are used instead of programs, which take longer to start.
    commands = [f"{name}() ( {body or ':'}\n)\n" for name, body in (ANSWERS | answers).items()]
    text = re.sub(rf"(?<![\w.}}/])/({FOLDERS})/", rf"{root}/\1/", SURVEY)
    text = text.replace("((EUID == 0))", "true").replace('(exec 3<>"/dev/tcp/$PLAN_PRIVATE_IP/22")', "true")
    given = dict(word.split("=") for word in PLAN.split()) | plan
    environment = {"PATH": os.environ["PATH"]} | {f"PLAN_{name}": value for name, value in given.items()}
    script = "".join([*commands, 'timeout() { shift; "$@"; }\n', text])
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=30
    )


ACCEPTED: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "plain": ({}, {}, {}),
    "gpus": (NVSWITCH, {}, GPUS),
    "infiniband": ({**port("mlx5_0"), **port("mlx5_1")}, {}, RDMA),
    # The cluster's own files and accounts are not conflicts.
    "ours": ({**OURS, **OUR_DATABASE}, {"systemctl": "exit 0", "getent": "echo x:x:2000:"}, {}),
    "no scheduler": ({"etc/slurm/slurm.conf": ""}, {}, {"SCHEDULER": "none"}),
    "no longer Slurm": (HAD_SLURM, {"systemctl": "exit 0", "squeue": ""}, {"SCHEDULER": "none"}),
    "Slurm as before": (HAD_SLURM, {"squeue": "echo 7"}, {}),
    "Slurm now": (HAD_NONE, {}, {}),
    "group of the right number": ({}, {"getent": OUR_GROUP}, {}),
    "allowed to log in": ({}, {"sshd": ALLOWED}, {}),
    "keys at home": ({}, {"sshd": AT_HOME}, {}),
    "files of the cluster included": ({"etc/ssh/sshd_config": "Include /etc/ssh/sshd_config.d/*.conf\n"}, {}, {}),
    "database and no Slurm": ({}, {"systemctl": MARIADB}, {"SCHEDULER": "none"}),
    "database on a worker": ({}, {"systemctl": MARIADB}, {"ROLE": "worker"}),
    "database of ours": ({**HAD_NONE, **OUR_DATABASE}, {"systemctl": MARIADB}, {}),
    "NFS server": ({"proc/fs/nfsd/versions": "+3 +4 +4.1 +4.2\n"}, {"systemctl": NFS}, {}),
    "RoCE": ({**port("rocep1", "Ethernet"), **port("rocep2", "Ethernet", "1: DOWN")}, {}, ROCE),
    "enough space": ({}, {}, {"SHARED_GIB": "400"}),
    "docker": ({}, {"docker": ""}, {**FAKE_GPUS, "CONTAINERS": "docker"}),
    "no driver yet": ({}, {"nvidia-smi": "exit 9"}, INSTALL),
    "installed driver": ({"sys/module/nvidia/version": "580.1\n"}, {}, INSTALL),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_suitable_host_is_accepted(tmp_path: Path, case: str) -> None:
    done = survey(tmp_path, *ACCEPTED[case])
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
    ("has no network interface with the address 10.0.0.7", {}, {"ip": OTHER_ADDRESS}, {}),
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
    ("let ops log in with its SSH key (allowusers ops@10.9.9.9)", {}, {"sshd": "echo allowusers ops@10.9.9.9"}, {}),
    ("does not include /etc/ssh/sshd_config.d/*.conf", {"etc/ssh/sshd_config": NO_INCLUDE}, {}, {}),
    ("`sshd -T` fails (line 3: bad)", {}, {"sshd": "echo 'line 3: bad' >&2; exit 255"}, {}),
    ("has 2 GPUs in MIG mode", {}, {"nvidia-smi": MIG}, GPUS),
    ("runs NVIDIA driver 535.1", {"sys/module/nvidia/version": "535.1\n"}, {"nvidia-smi": "exit 9"}, INSTALL),
    ("/var has 12 MiB free, but the bring-up needs 2048", {}, {"df": FULL}, {}),
    ("the disk of /shared (/) has 400 GiB free, but cluster.storage.shared.s", {}, {}, {"SHARED_GIB": "1200"}),
    ("/var/lib/mysql contains databases (wiki)", {"var/lib/mysql/wiki/x": "", "var/lib/mysql/mysql/x": ""}, {}, {}),
    ("runs a database server (mariadb)", HAD_NONE, {"systemctl": MARIADB}, {}),
    ("does not support NFS 4.2 (+3 +4 -4.2)", {"proc/fs/nfsd/versions": "+3 +4 -4.2\n"}, {"systemctl": NFS}, {}),
    ("/etc/exports uses fsid=0 fsid=1", {"proc/fs/nfsd/versions": "+4.2 \n", **EXPORTS}, {"systemctl": NFS}, {}),
    ("has 0 Ethernet RDMA ports that are up among rocep1, but own has 1", port("rocep2", "Ethernet"), {}, ROCE),
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


OFF = "for n in 1 2 3 4 5 6 7 8; do echo 'NVIDIA H100, [N/A], Disabled'; done"


@pytest.mark.parametrize(
    ("words", "files", "answers", "plan"),
    [
        ("1 InfiniBand ports are up but unused, because fabric ethernet is declared", port("mlx5_0"), {}, {}),
        ("note: 3 InfiniBand RDMA ports are up, but own has 2", port("a") | port("b") | port("c"), {}, RDMA),
        ("note: persistence mode is off on 8 GPUs", {}, {"nvidia-smi": OFF}, GPUS),
        ("note: no time daemon runs", {}, {}, {}),
    ],
)
def test_a_note_is_no_conflict(
    tmp_path: Path, words: str, files: dict[str, str], answers: dict[str, str], plan: dict[str, str]
) -> None:
    done = survey(tmp_path, files, answers, plan)
    assert done.returncode == 0
    assert words in done.stdout


def test_running_jobs_refuse_a_change_to_slurm(tmp_path: Path) -> None:
    survey(tmp_path, HAD_NONE, {}, {})
    with (tmp_path / "shared/jobs/.nodes/node-node2").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = survey(tmp_path, {}, {}, {})
    assert done.returncode == 1
    assert "has jobs (node-node2), which would not be in the queue of scheduler: slurm. Fix: " in done.stderr


@pytest.fixture
def raid(tmp_path: Path) -> Path:
    """A folder that only root can write to."""
    folder = tmp_path / "raid"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="the folders must belong to root")
def test_a_shared_folder_that_only_root_can_replace_is_accepted(tmp_path: Path, raid: Path) -> None:
    done = survey(tmp_path / "host", {}, {}, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="the folders must belong to root")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("chmod 0777 raid", "is not a folder that only root can replace"),
        ("chown 1234 raid", "is not a folder that only root can replace"),
        ("mv raid disk; ln -s disk raid", "is not a folder that only root can replace"),
        ("rmdir raid", "has no folder"),
        ("chmod 1777 raid; mkdir raid/trainyard; chown 1234 raid/trainyard", "raid/trainyard of cluster.storage"),
    ],
)
def test_a_shared_folder_that_others_can_replace_is_refused(
    tmp_path: Path, raid: Path, change: str, words: str
) -> None:
    subprocess.run(["sh", "-euc", change], cwd=tmp_path, check=True)
    done = survey(tmp_path / "host", {}, {}, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert done.returncode == 1
    assert words in done.stderr


def test_a_shared_folder_on_another_server_is_refused(tmp_path: Path, raid: Path) -> None:
    answers = {"findmnt": "[[ $* == *raid* ]] && echo nfs4 || { [[ $* == *-T* ]] && echo ext4; }", "stat": "echo 0"}
    done = survey(tmp_path / "host", {}, answers, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert "is on nfs4, which the head cannot export" in done.stderr


REACH = load("reach")


def refuse(monkeypatch: pytest.MonkeyPatch, fault: OSError, *ports: int) -> None:
    """Make connections to `ports` fail with `fault`, and refuse connections to all other ports."""

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        raise fault if address[1] in ports else ConnectionRefusedError(errno.ECONNREFUSED, "")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(REACH, "clock_difference", lambda address: None)


def test_a_refused_connection_is_a_success() -> None:
    assert REACH.fault("127.0.0.1", 1) == ""


@pytest.mark.parametrize(
    ("fault", "words"), [(TimeoutError(), "no answer"), (OSError(errno.EHOSTUNREACH, ""), "No route to host")]
)
def test_an_unreachable_port_has_a_fix(monkeypatch: pytest.MonkeyPatch, fault: OSError, words: str) -> None:
    refuse(monkeypatch, fault, 2049, 29500)
    assert REACH.conflicts("a", "b", "10.0.0.2") == [
        f"host a: b (10.0.0.2) cannot be reached on port 2049 (NFS): {words}, 29500 (ranks): {words}. "
        "Fix: let the hosts reach one another by TCP on all ports of their private network."
    ]


def test_all_faults_of_all_hosts_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, TimeoutError(), 22)
    monkeypatch.setenv("PLAN_NODE", "a")
    monkeypatch.setenv("PLAN_PEERS", "b=10.0.0.2 c=10.0.0.3")
    assert REACH.main() == 1
    assert [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()] == ["host a: b", "host a: c"]


@pytest.mark.parametrize(("ahead", "found"), [(None, 0), (59.0, 0), (-61.0, 1), (400.0, 1)])
def test_different_clocks_are_a_fault(monkeypatch: pytest.MonkeyPatch, ahead: float | None, found: int) -> None:
    refuse(monkeypatch, TimeoutError())
    monkeypatch.setattr(REACH, "clock_difference", lambda address: ahead)
    lines = REACH.conflicts("a", "b", "10.0.0.2")
    assert len(lines) == found
    assert all(line.startswith(f"host a: the clock of b differs by {ahead:+.0f} s. Fix: ") for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")
def test_the_clock_is_unknown_without_an_icmp_reply() -> None:
    assert REACH.clock_difference("127.0.0.1") in {None, 0.0} or abs(REACH.clock_difference("127.0.0.1")) < 1
    assert REACH.clock_difference("not-an-address.invalid") is None


def test_the_checksum_is_that_of_rfc_1071() -> None:
    assert REACH.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D
