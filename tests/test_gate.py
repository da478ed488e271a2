"""The gate's proof that jobs can start: what it makes of nodes that others take, and of nodes that are bad."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

GATE = Path(__file__).parents[1] / "cloud-init" / "files" / "usr" / "local" / "sbin" / "trainyard-gate"
WORKERS = ["a-0", "a-1"]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, without the side effect of a compiled file beside it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("trainyard_gate", str(GATE))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    return module


class Slurm:
    """Stands in for Slurm's commands. `srun` is what its next calls do."""

    def __init__(self, *srun: Callable[[Slurm], tuple[int, str]]) -> None:
        self.srun, self.idle, self.busy, self.pending = list(srun), set(WORKERS), set[str](), ""

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        code, said = 0, ""
        if command[0] == "sinfo":
            states = command[command.index("-t") + 1] if "-t" in command else ""
            there = self.idle if states == "idle" else self.busy if states else self.idle | self.busy
            said = "".join(f"{name}{'' if states else ' gpu'}\n" for name in sorted(there))
        elif command[0] == "squeue":
            said = self.pending
        else:
            code, said = self.srun.pop(0)(self)
        return subprocess.CompletedProcess(command, code, said, "srun: words of its own\n" if code else "")


def starts(slurm: Slurm) -> tuple[int, str]:
    return 0, "".join(f"{name}\n" for name in sorted(slurm.idle))


def waits(slurm: Slurm) -> tuple[int, str]:
    return 1, ""


def is_late(slurm: Slurm) -> tuple[int, str]:
    slurm.busy, slurm.idle = set(WORKERS), set()
    return 1, ""


def stands_behind(slurm: Slurm) -> tuple[int, str]:
    slurm.pending = "7\n"
    return 1, ""


def test_free_nodes_are_proven_by_a_task(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(starts)
    monkeypatch.setattr(gate, "run", slurm)
    assert gate.prove_slurm(WORKERS, 5, gate.Progress()) is None
    assert slurm.srun == []


def test_a_job_that_was_quicker_is_proof_enough(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "run", Slurm(is_late))
    assert gate.prove_slurm(WORKERS, 5, gate.Progress()) is None


def test_behind_a_job_that_waits_it_tries_again(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(stands_behind, starts)
    monkeypatch.setattr(gate, "run", slurm)
    assert gate.prove_slurm(WORKERS, 5, gate.Progress()) is None
    assert slurm.srun == []


def test_idle_nodes_that_start_nothing_are_named_at_once(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "run", Slurm(waits))
    said = gate.prove_slurm(WORKERS, 5, gate.Progress())
    assert said == "srun on partition gpu failed (exit 1):\nsrun: words of its own\n"


def test_what_slurm_does_not_offer_is_said_at_the_deadline(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    slurm.idle = {"a-0"}
    monkeypatch.setattr(gate, "run", slurm)
    assert gate.prove_slurm(WORKERS, 0.01, gate.Progress()).startswith("Slurm does not offer every node:")


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_waiting_gate_prints_at_least_every_minute(gate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = gate.Progress(clock)
    for second in range(0, 600, 5):
        clock.now = float(second)
        progress.tick()
        if second == 30:
            progress.say("something happened")
    lines = capsys.readouterr().out.splitlines()
    times = [0.0, *(float(line[1:6]) for line in lines), 600.0]
    assert max(later - earlier for earlier, later in pairwise(times)) <= 60
    assert lines[0] == "[ 30.0 s] something happened"
    assert lines[1] == "[ 80.0 s] waiting for the nodes"
    progress.finish()
    clock.now = 1000.0
    progress.tick()
    assert capsys.readouterr().out == ""


def test_it_names_the_nodes_their_stage_and_how_long(
    gate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    progress = gate.Progress(clock)
    (tmp_path / "nodes").mkdir()
    monkeypatch.setattr(gate, "STATE", tmp_path)
    monkeypatch.setattr(gate, "head_status", lambda: {"state": "ready"})

    def write(state: str) -> None:
        status = {"state": state, "stage": "30-driver"}
        (tmp_path / "nodes" / "a-0.json").write_text(json.dumps(status))

    def pass_time(_: float) -> None:
        clock.now += 30
        write("running" if clock.now < 120 else "failed")

    write("running")
    monkeypatch.setattr(gate.time, "sleep", pass_time)
    gate.wait_for_nodes("a-head", ["a-0"], 20, 45, progress)
    assert progress.waiting_for == "a-0 (failed 30-driver, 0 s)"
    assert gate.unready({"a-head": ("ready", 0.0), "a-0": ("running 30-driver", 0.0)}, 90) == (
        "a-0 (running 30-driver, 90 s)"
    )
    many = {f"a-{index}": ("booting", 0.0) for index in range(512)}
    assert gate.unready(many, 1).endswith("a-7 (booting, 1 s) and 504 more")


def test_slurms_proof_names_the_nodes_it_waits_for(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "run", Slurm(waits))
    progress = gate.Progress(Clock())
    gate.prove_slurm(WORKERS, 5, progress)
    assert progress.waiting_for == "Slurm to start a task on a-0, a-1"
