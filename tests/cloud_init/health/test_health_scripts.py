"""HealthCheckProgram, prolog and epilog."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.cloud_init.node_sandbox import NodeSandbox

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
        "etc/passwd", "root:x:0:0::/root:/bin/sh\nops:x:1500:1500::/:/bin/sh\ntrainer:x:2000:2000::/:/bin/sh\n"
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


@pytest.mark.parametrize(("uid", "gid"), [("1500", "1500"), ("0", "0"), ("64030", "64030"), ("2000", "6"), ("", "")])
def test_prolog_refuses_other_users_and_foreign_groups(uid: str, gid: str, node: NodeSandbox) -> None:
    done = node.run("sbin/trainyard-prolog", SLURM_JOB_UID=uid, SLURM_JOB_GID=gid)
    assert done.returncode == 1
    assert f"may run jobs here: uid {uid}, gid {gid}\n" in done.stderr


@pytest.mark.parametrize(
    ("groups", "gid", "code"), [("3000 trainer", "3000", 0), ("3000 trainer", "6", 1), ("3000", "3000", 1)]
)
def test_members_of_the_job_users_group_may_run_jobs(groups: str, gid: str, code: int, node: NodeSandbox) -> None:
    done = node.run("sbin/trainyard-prolog", SLURM_JOB_UID="3000", SLURM_JOB_GID=gid, GROUPS_OF_3000=groups)
    assert done.returncode == code


def test_prolog_fails_without_environment(node: NodeSandbox) -> None:
    assert "may run jobs here" in node.run("sbin/trainyard-prolog").stderr
    node.write(VERDICT, "fatal TY:gpu-xid: Xid 79\n")
    node.write("run/trainyard/health/drained", "")
    assert node.run("sbin/trainyard-prolog").stderr == "this node has a fault: TY:gpu-xid: Xid 79\n"


def as_nobody(*argv: str, job: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, user=65534, group=65534, extra_groups=[], env={"SLURM_JOB_ID": job, "PATH": "/bin:/usr/bin"}
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of another user")
def test_epilog_ends_only_the_processes_of_its_job(node: NodeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, other = as_nobody("sleep", "60", job="711"), as_nobody("sleep", "60", job="7110")
    try:
        time.sleep(0.3)
        node.answer("find", "true")
        script = node.moved("sbin/trainyard-epilog")
        environment = {**node.environment, "SLURM_JOB_ID": "711", "SLURM_JOB_UID": "65534"}
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert ended.wait(timeout=5) == -9
        assert other.poll() is None
        assert node.calls("find") == [], "the user has another process, which may use the files"
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of another user")
def test_epilog_reports_a_process_that_does_not_end(node: NodeSandbox) -> None:
    stuck = as_nobody("sleep", "60", job="712")
    try:
        time.sleep(0.3)
        folder = node.root / "run/trainyard/health"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "events")
        reader = os.open(folder / "events", os.O_RDONLY | os.O_NONBLOCK)
        # `kill` is a shell builtin, so a function replaces it instead of a program on PATH.
        script = "kill() { :; }\n" + node.moved("sbin/trainyard-epilog")
        environment = {**node.environment, "SLURM_JOB_ID": "712", "SLURM_JOB_UID": "65534"}
        done = subprocess.run(["bash", "-c", script], env=environment, timeout=60, check=False)
        assert done.returncode == 0
        assert os.read(reader, 4096).decode().split() == ["event", "leftover-processes", str(stuck.pid)]
    finally:
        stuck.kill()
        stuck.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="removes files of another user")
def test_epilog_removes_the_users_files(node: NodeSandbox) -> None:
    # Other users have no access to pytest's temporary folder.
    with tempfile.TemporaryDirectory() as name:
        shm = Path(name)
        shm.chmod(0o1777)
        for file, owner in (("own", 54321), ("foreign", 0)):
            (shm / file).write_text("x")
            os.chown(shm / file, owner, owner)
        script = node.moved("sbin/trainyard-epilog").replace("/dev/shm", name)  # noqa: S108
        environment = {**node.environment, "SLURM_JOB_ID": "713", "SLURM_JOB_UID": "54321"}
        subprocess.run(["bash", "-c", script], env=environment, timeout=60, check=True)
        assert [path.name for path in shm.iterdir()] == ["foreign"]
        # The program that removes the files runs without the rights of root's group.
        (shm / "groups").touch()
        (shm / "groups").chmod(0o666)
        script = script.replace("-- find", f"-- sh -c 'id -G >{name}/groups'")
        subprocess.run(["bash", "-c", script], env=environment, timeout=60, check=True)
        assert (shm / "groups").read_text() == "65534\n"


def test_command_explains_its_usage(tmp_path: Path) -> None:
    library = Path(__file__).parents[3] / "cloud-init/files/usr/local/lib/trainyard"
    code = "import sys; from health.program import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-B", "-c", code, "clear", "unknown-check"]
    done = subprocess.run(argv, env={"PYTHONPATH": str(library)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "usage: trainyard-health daemon | apply | report | return [--new] | status | clear CHECK\n"
