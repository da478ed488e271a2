"""HealthCheckProgram, prolog and epilog, the services that 80-watch starts, and the end of 90-health."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from components.node.parameters import render_repair
from components.platforms.registry import platform_facts
from tests.cloud_init.node_sandbox import NodeSandbox
from tests.cloud_init.stage_sandbox import STAGES, Sandbox, bash
from tests.components.platforms.recording import planned

pytestmark = pytest.mark.engine

VERDICT = "run/trainyard/health/verdict"
JOB = {"SLURM_JOB_UID": "2000", "SLURM_JOB_GID": "2000"}
"""The job user's ids in the prolog's environment."""


@pytest.fixture
def node(tmp_path: Path) -> NodeSandbox:
    sandbox = NodeSandbox(tmp_path)
    program = tmp_path / "usr/local/sbin/trainyard-health"
    program.write_text(f"#!/bin/sh\necho $@ >>{tmp_path}/calls-health\n")
    program.chmod(0o755)
    sandbox.write("calls-health", "")
    sandbox.write(
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\nops:x:1500:1500::/:/bin/sh\ntrainer:x:2000:2000::/:/bin/sh\n"
        "ann:x:23870:2001::/:/bin/sh\n",
    )
    sandbox.answer("id", 'case "$*" in *" 3000") echo "${GROUPS_OF_3000:-}" ;; *) echo users ;; esac')
    return sandbox


@pytest.mark.parametrize("verdict", [None, "", "\n"])
def test_healthy_node_starts_no_program(verdict: str | None, node: NodeSandbox) -> None:
    if verdict is not None:
        node.write(VERDICT, verdict)
    assert node.run("sbin/trainyard-health-program").returncode == 0
    assert node.run("sbin/trainyard-prolog", **JOB).returncode == 0
    assert node.read("calls-health") + node.read("calls-id") == ""


def test_verdict_is_applied_again(node: NodeSandbox) -> None:
    node.write(VERDICT, "degraded TY:disk-full: / is full\n")
    assert node.run("sbin/trainyard-health-program").returncode == 0
    assert node.read("calls-health") == "apply\n"


def test_prolog_refuses_jobs_on_a_drained_node_with_a_fatal_fault(node: NodeSandbox) -> None:
    node.write(VERDICT, "fatal TY:gpu-xid: Xid 79\n")
    assert node.run("sbin/trainyard-prolog", **JOB).returncode == 0, (
        "the node is not drained yet, and Slurm would drain it"
    )
    node.write("run/trainyard/health/drained", "")
    done = node.run("sbin/trainyard-prolog", **JOB)
    assert done.returncode == 1
    assert done.stderr == "this node has a fault: TY:gpu-xid: Xid 79\n"
    node.write(VERDICT, "degraded TY:disk-full: / is full\n")
    assert node.run("sbin/trainyard-prolog", **JOB).returncode == 0


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "code"),
    [
        *((uid, uid, "", 1) for uid in ("1500", "0", "64030", "")),
        ("2000", "6", "", 1),
        ("3000", "3000", "3000 trainer", 0),
        ("3000", "6", "3000 trainer", 1),
        ("3000", "3000", "3000", 1),
        ("23870", "2001", "", 0),
        ("23870", "6", "", 1),
        ("2000", "2001", "", 1),
    ],
)
def test_only_members_of_the_job_users_group_may_run_jobs(
    uid: str, gid: str, groups: str, code: int, node: NodeSandbox
) -> None:
    done = node.run("sbin/trainyard-prolog", SLURM_JOB_UID=uid, SLURM_JOB_GID=gid, GROUPS_OF_3000=groups)
    assert done.returncode == code
    assert (f"may run jobs here: uid {uid}, gid {gid}\n" in done.stderr) is bool(code)


def test_prolog_refuses_jobs_at_the_beginning_of_a_second(node: NodeSandbox) -> None:
    node.answer("sleep", "")
    before = time.time()
    assert node.run("sbin/trainyard-prolog", SLURM_JOB_UID="0", SLURM_JOB_GID="0").returncode == 1
    [seconds] = map(float, node.calls("sleep"))
    assert 0 < seconds <= 1
    assert math.ceil(before + seconds - 1e-5) <= time.time() + seconds


def test_prolog_waits_for_the_account_of_a_new_person(node: NodeSandbox) -> None:
    new = {"SLURM_JOB_UID": "28650", "SLURM_JOB_GID": "2001"}
    node.answer("id", "exit 1")
    passwd, added = node.root / "etc/passwd", "bob:x:28650:2001::/:/bin/sh"
    node.answer("sleep", f"echo {added} >>{passwd}")
    assert node.run("sbin/trainyard-prolog", **new).returncode == 0
    assert node.calls("sleep") == ["1"]
    # Other uids are refused at once.
    assert node.run("sbin/trainyard-prolog", SLURM_JOB_UID="5000", SLURM_JOB_GID="5000").returncode == 1
    [_, seconds] = node.calls("sleep")
    assert float(seconds) <= 1


def test_gid_of_people_has_no_meaning_on_existing_hosts(node: NodeSandbox) -> None:
    (node.root / "var/lib/trainyard/borrowed").mkdir()
    assert node.run("sbin/trainyard-prolog", SLURM_JOB_UID="23870", SLURM_JOB_GID="2001").returncode == 1


def test_prolog_fails_without_environment(node: NodeSandbox) -> None:
    assert "may run jobs here" in node.run("sbin/trainyard-prolog").stderr
    node.write(VERDICT, "fatal TY:gpu-xid: Xid 79\n")
    node.write("run/trainyard/health/drained", "")
    assert node.run("sbin/trainyard-prolog").stderr == "this node has a fault: TY:gpu-xid: Xid 79\n"


def test_prolog_records_the_gpus_of_a_job_and_epilog_deletes_them(node: NodeSandbox) -> None:
    job = {**JOB, "SLURM_JOB_ID": "711", "SLURM_JOB_GPUS": "0,3"}
    # The daemon has not created the folder yet.
    assert node.run("sbin/trainyard-prolog", **job).returncode == 0
    folder = node.root / "run/trainyard/health/gpus"
    folder.mkdir(parents=True)
    refused = {**job, "SLURM_JOB_UID": "1500"}
    node.answer("sleep", "")
    for environment, code in ((refused, 1), ({**job, "SLURM_JOB_GPUS": ""}, 0), ({**job, "SLURM_JOB_ID": "../x"}, 0)):
        assert node.run("sbin/trainyard-prolog", **environment).returncode == code
    assert list(folder.iterdir()) == []
    assert node.run("sbin/trainyard-prolog", **job).returncode == 0
    assert (folder / "711").read_text() == "0,3\n"
    node.write("run/trainyard/health/gpus/712", "1\n")
    epilog(node, "711", "0", node.moved("sbin/trainyard-epilog"))
    assert [file.name for file in folder.iterdir()] == ["712"]


def as_nobody(*argv: str, job: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, user=65534, group=65534, extra_groups=[], env={"SLURM_JOB_ID": job, "PATH": "/bin:/usr/bin"}
    )


def epilog(node: NodeSandbox, job: str, user: str, script: str) -> None:
    environment = {**node.environment, "SLURM_JOB_ID": job, "SLURM_JOB_UID": user}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="uses processes and files of other users")


@needs_root
def test_epilog_ends_only_the_processes_of_its_job(node: NodeSandbox) -> None:
    ended, other = as_nobody("sleep", "60", job="711"), as_nobody("sleep", "60", job="7110")
    try:
        time.sleep(0.3)
        node.answer("find", "true")
        epilog(node, "711", "65534", node.moved("sbin/trainyard-epilog"))
        assert ended.wait(timeout=5) == -9
        assert other.poll() is None
        assert node.calls("find") == [], "the user has another process, which may use the files"
    finally:
        other.kill()
        other.wait()


@needs_root
def test_epilog_reports_a_process_that_does_not_end(node: NodeSandbox) -> None:
    stuck = as_nobody("sleep", "60", job="712")
    try:
        time.sleep(0.3)
        folder = node.root / "run/trainyard/health"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "events")
        reader = os.open(folder / "events", os.O_RDONLY | os.O_NONBLOCK)
        # `kill` is a shell builtin, so a function replaces it instead of a program on PATH.
        epilog(node, "712", "65534", "kill() { :; }\n" + node.moved("sbin/trainyard-epilog"))
        assert os.read(reader, 4096).decode().split() == ["event", "leftover-processes", str(stuck.pid)]
    finally:
        stuck.kill()
        stuck.wait()


@needs_root
def test_epilog_removes_the_users_files(node: NodeSandbox) -> None:
    # Other users have no access to pytest's temporary folder.
    with tempfile.TemporaryDirectory() as name:
        shm = Path(name)
        shm.chmod(0o1777)
        for file, owner in (("own", 54321), ("foreign", 0)):
            (shm / file).write_text("x")
            os.chown(shm / file, owner, owner)
        script = node.moved("sbin/trainyard-epilog").replace("/dev/shm", name)  # noqa: S108
        epilog(node, "713", "54321", script)
        assert [path.name for path in shm.iterdir()] == ["foreign"]
        # The program that removes the files runs without the rights of root's group.
        (shm / "groups").touch()
        (shm / "groups").chmod(0o666)
        epilog(node, "713", "54321", script.replace("-- find", f"-- sh -c 'id -G >{name}/groups'"))
        assert (shm / "groups").read_text() == "65534\n"


def watch(root: Path, role: str) -> list[str]:
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    handover = str(root / "handover")
    return Sandbox(root, ("systemctl",), {}).run("80-watch", ROLE=role, TEST_HANDOVER=handover).commands


def test_daemon_restarts_only_after_a_change(tmp_path: Path) -> None:
    code = tmp_path / "usr/local/lib/trainyard/health"
    code.mkdir(parents=True)
    (code / "core.py").write_text("1\n")
    (code / "checks.json").write_text("{}\n")
    assert watch(tmp_path, "worker") == ["systemctl restart trainyard-health.service"]
    assert watch(tmp_path, "worker") == ["systemctl start trainyard-health.service"]
    (code / "core.py").write_text("2\n")
    assert watch(tmp_path, "worker") == ["systemctl restart trainyard-health.service"]


def test_head_with_slurm_has_the_repair_service(tmp_path: Path) -> None:
    assert watch(tmp_path, "head") == ["systemctl restart trainyard-repair.service"]


def test_a_head_with_a_power_command_has_its_socket(tmp_path: Path) -> None:
    stack = {"scheduler": "slurm", "nodes__gpu__elastic": {"min": 0}, "platform__power_command": ["/opt/power"]}
    plan = planned("baremetal-h100", stack).plan
    (tmp_path / "handover").mkdir()
    (tmp_path / "handover/repair.json").write_text(
        render_repair(plan, platform_facts("hosts").power_channel(plan)) or ""
    )
    started = ["systemctl start trainyard-power.socket", "systemctl restart trainyard-repair.service"]
    assert watch(tmp_path, "head") == started


@pytest.mark.parametrize(
    ("timeline", "state", "calls"),
    [
        ("", "IDLE+DRAIN", ["return --new", "program"]),
        ("9 ready\n", "DOWN*", ["return", "program"]),
        ("9 ready\n", "IDLE", []),
    ],
)
def test_node_out_of_service_may_return_after_its_boot(
    timeline: str, state: str, calls: list[str], tmp_path: Path
) -> None:
    text = (STAGES / "90-health").read_text()
    end = text[text.index("[[ $(scontrol -o show node") :]
    (tmp_path / "timeline").write_text(timeline)
    end = end.replace("/var/lib/trainyard/timeline", f"{tmp_path}/timeline")
    end = end.replace("/usr/local/sbin/trainyard-health return", "echo return")
    end = end.replace("/usr/local/sbin/trainyard-health-program", "echo program")
    script = f"scontrol() {{ echo 'NodeName=n State={state} ThreadsPerCore=1'; }}\n{end}"
    assert bash(script, TRAINYARD_NODE="n").splitlines() == calls
