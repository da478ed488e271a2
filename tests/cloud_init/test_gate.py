"""trainyard-gate: progress, messages, and the checks for busy nodes and faulty nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import gate.nodes
import gate.program
import pytest
from gate.nodes import Progress

WORKERS = ["a-0", "a-1"]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real module stays unchanged, because threads of other tests can call time.sleep."""
    for module in (gate.nodes, gate.program):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))


class Slurm:
    """Fake Slurm commands. Each srun command calls the next of the functions passed to the constructor."""

    def __init__(self, *srun: Callable[[Slurm], tuple[int, str]]) -> None:
        self.srun, self.idle, self.busy, self.pending = list(srun), set(WORKERS), set[str](), ""

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        code, output = 0, ""
        if command[0] == "sinfo":
            states = command[command.index("-t") + 1] if "-t" in command else ""
            nodes = self.idle if states == "idle" else self.busy if states else self.idle | self.busy
            output = "".join(f"{name}{'' if states else ' gpu'}\n" for name in sorted(nodes))
        elif command[0] == "squeue":
            output = self.pending
        else:
            code, output = self.srun.pop(0)(self)
        return subprocess.CompletedProcess(command, code, output, "srun: error\n" if code else "")


def succeeds(slurm: Slurm) -> tuple[int, str]:
    return 0, "".join(f"{name}\n" for name in sorted(slurm.idle))


def fails(slurm: Slurm) -> tuple[int, str]:
    return 1, ""


def nodes_become_busy(slurm: Slurm) -> tuple[int, str]:
    slurm.busy, slurm.idle = set(WORKERS), set()
    return 1, ""


def job_is_pending(slurm: Slurm) -> tuple[int, str]:
    slurm.pending = "7\n"
    return 1, ""


@pytest.mark.parametrize(
    ("tasks", "idle", "message"),
    [
        ([succeeds], WORKERS, None),
        ([nodes_become_busy], WORKERS, None),
        ([job_is_pending, succeeds], WORKERS, None),
        ([fails], WORKERS, "srun on partition gpu failed (exit 1):\nsrun: error\n"),
        ([], ["a-0"], "some nodes are not available in Slurm:"),
    ],
    ids=["idle nodes", "busy nodes", "pending job", "failed task", "unavailable node"],
)
def test_nodes_pass_if_a_task_starts_or_jobs_use_them(
    monkeypatch: pytest.MonkeyPatch,
    tasks: list[Callable[[Slurm], tuple[int, str]]],
    idle: list[str],
    message: str | None,
) -> None:
    slurm = Slurm(*tasks)
    slurm.idle = set(idle)
    monkeypatch.setattr(gate.nodes, "run", slurm)
    progress = Progress()
    found = gate.nodes.check_slurm(WORKERS, 5 if tasks else 0.01, progress)
    assert slurm.srun == []
    assert (found is None) is (message is None)
    assert (found or "").startswith(message or "")
    if tasks == [fails]:
        assert progress.waiting_for == "Slurm to start a task on a-0, a-1"


class Clock:
    """A clock with a time that the tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the state of a ready head."""
    (tmp_path / "nodes").mkdir()
    for module in (gate.nodes, gate.program):
        monkeypatch.setattr(module, "STATE", tmp_path)
    monkeypatch.setattr(gate.nodes, "head_status", lambda: {"state": "ready"})
    return tmp_path


def test_gate_prints_a_line_at_least_every_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress(clock)
    for second in range(0, 600, 5):
        clock.now = float(second)
        progress.tick()
        if second == 30:
            progress.print_line("something happened")
    lines = capsys.readouterr().out.splitlines()
    times = [0.0, *(float(line[1:6]) for line in lines), 600.0]
    assert max(later - earlier for earlier, later in pairwise(times)) <= 60
    assert lines[0] == "[ 30.0 s] something happened"
    assert lines[1] == "[ 80.0 s] waiting for the nodes"
    progress.finish()
    clock.now = 1000.0
    progress.tick()
    assert capsys.readouterr().out == ""


def test_status_text_of_a_worker_is_escaped(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clear, title = "\x1b[2J", "\x9d0;owned\x9c"
    status = {"state": "failed", "stage": clear, "command": title, "exit_code": clear, "log_tail": [clear]}
    (state / "nodes" / "a-0.json").write_text(json.dumps(status))
    (state / "handover").mkdir()
    (state / "handover" / "nodes").write_text("a-0 10.0.0.5 gpu 8 any\n")
    node_env = state / "node.env"
    node_env.write_text("TRAINYARD_NODE=a-head\nTRAINYARD_SCHEDULER=slurm\n")
    monkeypatch.setattr(
        gate.program, "Path", lambda path: node_env if path == "/etc/trainyard/node.env" else Path(path)
    )
    monkeypatch.setattr(gate.program, "run", lambda *command: subprocess.CompletedProcess(command, 1, "", ""))
    monkeypatch.setattr(Progress, "watch", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["trainyard-gate"])
    assert gate.program.main() == 1
    printed = "".join(capsys.readouterr())
    assert printed.count(r"\x1b[2J") == 5
    assert r"\x9d0;owned\x9c" in printed
    assert not set(printed) & {"\x1b", "\x9d", "\x9c"}


def test_all_output_of_the_gate_is_escaped() -> None:
    folder = Path(str(gate.program.__file__)).parent
    code = "".join(file.read_text() for file in folder.glob("*.py"))
    assert (code.count(".write("), code.count("print(")) == (1, 0)


class DrainingSlurm(Slurm):
    """Slurm that drains a-1 while the task starts."""

    rows = "a-1 drained TY:clock-offset: the clock differs by 12 s\na-9 down* Not responding\n"

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        if command[:4] == ("sinfo", "-h", "-N", "-t") and command[4] == gate.nodes.OUT_OF_SERVICE:
            return subprocess.CompletedProcess(command, 0, "" if self.idle == set(WORKERS) else self.rows, "")
        return super().__call__(*command)


def test_a_node_that_drains_is_named_with_reason_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def drains(slurm: Slurm) -> tuple[int, str]:
        slurm.idle = {"a-0"}
        return 1, "Required node not available (down, drained or reserved)"

    monkeypatch.setattr(gate.nodes, "run", DrainingSlurm(drains))
    message = gate.nodes.check_slurm(WORKERS, 0.01, Progress())
    assert message == (
        "Slurm starts no task on these nodes:\n"
        "  a-1 is drained: TY:clock-offset: the clock differs by 12 s. Fix: correct the fault. The node returns to "
        "service when its check passes (see `yard doctor`), then run `pulumi up` again"
    )


def test_slow_and_quarantined_nodes_do_not_prevent_a_ready_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "a-0 TY:bandwidth: alone: 3 GB/s\na-1 TY:quarantine: 3 faults in a week\na-2 TY:disk-full: / is full\n"
    monkeypatch.setattr(gate.nodes, "run", lambda *command: subprocess.CompletedProcess(command, 0, rows, ""))
    assert gate.nodes.drained_nodes() == {"a-0": "drained by the bandwidth gate", "a-1": "quarantined by yard heal"}


def test_gate_waits_until_the_spares_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ["ReservationName=spares-gpu StartTime=x\n", "ReservationName=mine StartTime=x\n"]
    monkeypatch.setattr(gate.nodes, "run", lambda *command: subprocess.CompletedProcess(command, 0, shown.pop(0), ""))
    gate.nodes.wait_for_spares()
    assert shown == []


def test_gate_reports_unready_nodes_with_stage_and_duration(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    clock = Clock()
    progress = Progress(clock)

    def write(word: str) -> None:
        status = {"state": word, "stage": "30-driver"}
        (state / "nodes" / "a-0.json").write_text(json.dumps(status))

    def pass_time(_: float) -> None:
        clock.now += 30
        write("running" if clock.now < 120 else "failed")

    write("running")
    monkeypatch.setattr("gate.nodes.time.sleep", pass_time)
    gate.nodes.wait_for_nodes("a-head", ["a-0"], 20, 45, progress)
    assert progress.waiting_for == "a-0 (failed 30-driver, 0 s)"
    assert gate.nodes.describe_unready({"a-head": ("ready", 0.0), "a-0": ("running 30-driver", 0.0)}, 90) == (
        "a-0 (running 30-driver, 90 s)"
    )
    many = {f"a-{index}": ("booting", 0.0) for index in range(512)}
    assert gate.nodes.describe_unready(many, 1).endswith("a-7 (booting, 1 s) and 504 more")


REASON = "stages 44-containers need a node without jobs; running jobs: 12"


def test_gate_ends_while_a_node_waits_for_its_jobs(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    progress = Progress(clock)
    status = {"state": "waiting", "stage": "44-containers", "reason": REASON}
    (state / "nodes" / "a-0.json").write_text(json.dumps(status))
    monkeypatch.setattr("gate.nodes.time.sleep", lambda _: setattr(clock, "now", clock.now + 10))
    assert gate.nodes.wait_for_nodes("a-head", ["a-0"], 20, 45, progress) == ([], {"a-0": REASON})
    assert gate.nodes.IDLE_SECONDS < clock.now <= gate.nodes.IDLE_SECONDS + 20
    assert f"a-0: waiting 44-containers: {REASON}" in capsys.readouterr().out


def test_gate_prints_why_a_node_rejected_the_hand_over(state: Path) -> None:
    (state / "nodes" / "a-0.error").write_text("trainyard-receive: the bundle is damaged\n")
    failed = {"state": "failed", "stage": "hand-over", "command": "trainyard-receive", "exit_code": 2}
    assert gate.nodes.failure_message("a-0", failed) == "a-0: trainyard-receive: the bundle is damaged"
