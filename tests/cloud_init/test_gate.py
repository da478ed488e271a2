"""trainyard-gate: progress, messages, and checks of nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import gate.program
import pytest
from gate.program import Progress

from trainyard.faults import CLOSED, operator_reason

WORKERS = ["a-0", "a-1"]


Answer = tuple[int, str]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real module stays unchanged, because threads of other tests can call time.sleep."""
    monkeypatch.setattr(gate.program, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))


class Slurm:
    """Fake Slurm commands. Each srun command calls the next of the functions passed to the constructor."""

    def __init__(self, *srun: Callable[[Slurm], Answer]) -> None:
        self.srun, self.idle, self.busy, self.pending, self.drained = list(srun), set(WORKERS), set[str](), "", ""

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        code, output = 0, ""
        if command[0] == "sinfo":
            states = command[command.index("-t") + 1] if "-t" in command else ""
            nodes = self.idle if states == "idle" else self.busy if states else self.idle | self.busy
            output = "".join(f"{name}{' gpu' if states == 'idle' else ''}\n" for name in sorted(nodes))
            output = self.drained if states == gate.program.OUT_OF_SERVICE else output
        elif command[0] == "squeue":
            output = self.pending
        else:
            code, output = self.srun.pop(0)(self)
        return subprocess.CompletedProcess(command, code, output, "srun: error\n" if code else "")


def succeeds(slurm: Slurm) -> Answer:
    return 0, "".join(f"{name}\n" for name in sorted(slurm.idle))


def fails(slurm: Slurm) -> Answer:
    return 1, ""


def nodes_become_busy(slurm: Slurm) -> Answer:
    slurm.busy, slurm.idle = set(WORKERS), set()
    return 1, ""


def job_is_pending(slurm: Slurm) -> Answer:
    slurm.pending = "7\n"
    return 1, ""


def one_drains(slurm: Slurm) -> Answer:
    slurm.idle = {"a-0"}
    slurm.drained = "a-1 drained TY:clock-offset: the clock differs by 12 s\na-9 down* Not responding\n"
    return 1, "Required node not available (down, drained or reserved)"


def a_person_drains_one(slurm: Slurm) -> Answer:
    answer = one_drains(slurm)
    slurm.drained = "a-1 drained new disk\n"
    return answer


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([succeeds], None),
        ([nodes_become_busy], None),
        ([job_is_pending, succeeds], None),
        ([fails], "srun on partition gpu failed (exit 1):\nsrun: error\n"),
        ([one_drains], "\n  a-1 is drained: TY:clock-offset: the clock differs by 12 s. Fix: correct the fault."),
        ([a_person_drains_one], "new disk. Fix: correct the cause, then run `yard undrain a-1`"),
    ],
)
def test_nodes_pass_if_a_task_starts_or_jobs_use_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tasks: list[Callable[[Slurm], Answer]],
    message: str | None,
) -> None:
    slurm = Slurm(*tasks)
    monkeypatch.setattr(gate.program, "run", slurm)
    monkeypatch.setattr(gate.program, "run_unless_taken", lambda nodes, *command: slurm(*command))
    progress = Progress()
    found = gate.program.check_slurm(WORKERS, 0.01 if tasks[-1] in {one_drains, a_person_drains_one} else 5, progress)
    assert bool(found) is bool(message)
    assert (message or "") in (found or "")
    assert slurm.srun == []
    text = "jobs are running on a-0, a-1, so the gate started no task there\n"
    assert capsys.readouterr().out.endswith(text) == (tasks == [nodes_become_busy])
    if tasks == [fails]:
        assert progress.waiting_for == "Slurm to start a task on a-0, a-1"


def test_node_without_a_known_state_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    slurm.idle = {"a-0"}
    monkeypatch.setattr(gate.program, "run", slurm)
    monkeypatch.setattr(gate.program, "run_unless_taken", lambda nodes, *command: slurm(*command))
    message = gate.program.check_slurm(WORKERS, 0, Progress())
    assert (message or "").startswith("some nodes are not available in Slurm:")


@pytest.mark.parametrize(("waits", "seconds"), [(True, "0.5"), (False, "0.5"), (True, "30")])
def test_a_task_does_not_wait_for_nodes_that_a_job_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, seconds: str
) -> None:
    is_taken = waits and seconds == "30"
    for name, line in (("sinfo", "echo a-0" if is_taken else ":"), ("squeue", "echo 7" if waits else ":")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gate.program, "TAKEN_SECONDS", 0.1)
    begin = time.monotonic()
    done = gate.program.run_unless_taken(WORKERS, "timeout", "30", "sleep", seconds)
    assert (done.returncode != 0) == is_taken
    assert time.monotonic() - begin < 10


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nodes").mkdir()
    monkeypatch.setattr(gate.program, "STATE", tmp_path)
    monkeypatch.setattr(gate.program, "head_status", lambda: {"state": "ready"})
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
    states = "failed\n\nactive\n"
    monkeypatch.setattr(gate.program, "run", lambda *command: subprocess.CompletedProcess(command, 0, states, ""))
    monkeypatch.setattr(Progress, "watch", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["trainyard-gate"])
    assert gate.program.main() == 1
    printed = "".join(capsys.readouterr())
    assert printed.count(r"\x1b[2J") == 5
    assert r"\x9d0;owned\x9c" in printed
    assert not set(printed) & {"\x1b", "\x9d", "\x9c"}


def test_nodes_that_were_removed_do_not_prevent_a_ready_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {
        "a-0": "TY:bandwidth: alone: 3 GB/s",
        "a-1": "TY:quarantine: 3 faults in a week",
        "a-2": operator_reason("Ann Lee", "laptop", "new fan"),
        "a-3": "TY:disk-full: / is full",
        "a-4": "Kill task failed",
        "a-5": "Not responding",
    }
    rows = "".join(f"{name} {reason}\n" for name, reason in reasons.items())
    monkeypatch.setattr(gate.program, "run", lambda *command: subprocess.CompletedProcess(command, 0, rows, ""))
    assert gate.program.drained_nodes() == {
        "a-0": "drained by the bandwidth gate",
        "a-1": "quarantined by yard heal",
        "a-2": "drained by Ann-Lee@laptop",
    }


def test_gate_waits_until_the_spares_are_released(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    (state / "handover").mkdir()
    (state / "handover" / "repair.json").write_text(json.dumps({"groups": {"gpu": {"spares": 1}}}))
    shown = ["ReservationName=spares-gpu StartTime=x\n", "ReservationName=mine StartTime=x\n"]
    monkeypatch.setattr(gate.program, "run", lambda *command: subprocess.CompletedProcess(command, 0, shown.pop(0), ""))
    gate.program.wait_for_spares()
    assert shown == []


@pytest.mark.parametrize("opens_after", [None, 3])
def test_gate_starts_no_task_while_partitions_are_closed(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str], opens_after: int | None
) -> None:
    (state / "handover").mkdir()
    (state / "handover" / "nodes").write_text("a-0 10.0.0.5 gpu 8 any\nb-0 10.0.0.6 cpu 0 any\n")
    node_env = state / "node.env"
    node_env.write_text("TRAINYARD_NODE=a-head\nTRAINYARD_SCHEDULER=slurm\n")
    record = state / CLOSED
    record.parent.mkdir()
    record.write_text('{"gpu": ["limits.max_usd_per_month is spent", "UP"]}')
    monkeypatch.setattr(
        gate.program, "Path", lambda path: node_env if path == "/etc/trainyard/node.env" else Path(path)
    )
    states = {"systemctl": "active\n\nactive\n"}
    monkeypatch.setattr(
        gate.program, "run", lambda *command: subprocess.CompletedProcess(command, 0, states.get(command[0], ""), "")
    )
    monkeypatch.setattr(gate.program, "wait_for_nodes", lambda *_: ([], {}))
    tested: list[str] = []
    monkeypatch.setattr(gate.program, "check_slurm", lambda workers, *_: tested.extend(workers))
    monkeypatch.setattr(Progress, "watch", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["trainyard-gate"])
    clock = Clock()

    def pass_time(seconds: float) -> None:
        clock.now += seconds
        if opens_after is not None and clock.now > opens_after:
            record.write_text("{}")

    monkeypatch.setattr(gate.program, "time", SimpleNamespace(monotonic=clock, sleep=pass_time))
    assert gate.program.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    if opens_after is not None:
        assert (tested, last, clock.now) == (["a-0", "b-0"], "3 nodes are ready", 3.5)
        return
    why = "no task was started on them, because limits.max_usd_per_month is spent: a-0"
    assert (tested, last, clock.now) == (["b-0"], f"2 nodes are ready; {why}", gate.program.OPEN_SECONDS)


def test_gate_reports_unready_nodes_with_stage_and_duration(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    clock = Clock()
    progress = Progress(clock)

    def pass_time(_: float) -> None:
        clock.now += 30
        status = {"state": "running" if clock.now < 120 else "failed", "stage": "30-driver"}
        (state / "nodes" / "a-0.json").write_text(json.dumps(status))

    monkeypatch.setattr("gate.program.time.sleep", pass_time)
    gate.program.wait_for_nodes("a-head", ["a-0"], 20, 45, progress)
    assert progress.waiting_for == "a-0 (failed 30-driver, 0 s)"
    shown = {f"a-{index}": ("booting", 0.0) for index in range(512)} | {"a-head": ("ready", 0.0)}
    text = gate.program.describe_unready(shown, 90)
    assert text.startswith("a-0 (booting, 90 s), ")
    assert text.endswith("a-7 (booting, 90 s) and 504 more")


REASON = "stages 44-containers need a node without jobs; running jobs: 12"


def test_gate_ends_while_a_node_waits_for_its_jobs(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    progress = Progress(clock)
    status = {"state": "waiting", "stage": "44-containers", "reason": REASON}
    (state / "nodes" / "a-0.json").write_text(json.dumps(status))
    monkeypatch.setattr("gate.program.time.sleep", lambda _: setattr(clock, "now", clock.now + 10))
    assert gate.program.wait_for_nodes("a-head", ["a-0"], 20, 45, progress) == ([], {"a-0": REASON})
    assert gate.program.IDLE_SECONDS < clock.now <= gate.program.IDLE_SECONDS + 20
    assert f"a-0: waiting 44-containers: {REASON}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["[]", "7", '"x"', "{}", '{"state": 7}', '{"state": "failed"}', '{"state": "failed", "log_tail": 7}']
)
def test_invalid_status_of_a_worker_fails_only_this_worker(state: Path, text: str) -> None:
    (state / "nodes" / "a-0.json").write_text(text)
    status = gate.program.read_status(state / "nodes" / "a-0.json")
    assert gate.program.failure_message("a-0", status).startswith("a-0: ")
    assert gate.program.describe_state(status).strip() in {"connecting", "failed"}


def test_gate_prints_why_a_node_rejected_the_hand_over(state: Path) -> None:
    (state / "nodes" / "a-0.error").write_text("trainyard-receive: the bundle is damaged\n")
    failed = {"state": "failed", "stage": "hand-over", "command": "trainyard-receive", "exit_code": 2}
    assert gate.program.failure_message("a-0", failed) == "a-0: trainyard-receive: the bundle is damaged"


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        # A different group may be in a different partition.
        ("a-0=0x8045 a-1=0x8045 b-0=0x8046", ""),
        ("a-0=0x8045 a-1=0x8046 a-2=0x8045", "group a: placement same_fabric.*0x8045: a-0, a-2; 0x8046: a-1"),
        ("a-0= a-1=0x8045", "no partition: a-0"),
        ("a-0=", "no partition: a-0"),
        ("any-0=0x8045 any-1=", ""),
    ],
)
def test_same_fabric_groups_must_be_in_one_partition(state: Path, nodes: str, words: str) -> None:
    lines = []
    for name, partition in (node.split("=") for node in nodes.split()):
        (state / "nodes" / f"{name}.json").write_text(json.dumps({"state": "ready", "partition": partition}))
        group = name.split("-")[0]
        lines.append([name, "10.0.0.1", group, "8", "any" if group == "any" else "same_fabric"])
    message = "\n".join(gate.program.check_partitions(lines))
    assert bool(message) is bool(words)
    assert re.search(words, message, re.S)
