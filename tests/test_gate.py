"""The gate's proof that jobs can start: what it makes of nodes that others take, and of nodes that are bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
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
    assert gate.prove_slurm(WORKERS, 5) is None
    assert slurm.srun == []


def test_a_job_that_was_quicker_is_proof_enough(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "run", Slurm(is_late))
    assert gate.prove_slurm(WORKERS, 5) is None


def test_behind_a_job_that_waits_it_tries_again(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(stands_behind, starts)
    monkeypatch.setattr(gate, "run", slurm)
    assert gate.prove_slurm(WORKERS, 5) is None
    assert slurm.srun == []


def test_idle_nodes_that_start_nothing_are_named_at_once(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "run", Slurm(waits))
    said = gate.prove_slurm(WORKERS, 5)
    assert said == "srun on partition gpu failed (exit 1):\nsrun: words of its own\n"


def test_what_slurm_does_not_offer_is_said_at_the_deadline(gate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    slurm.idle = {"a-0"}
    monkeypatch.setattr(gate, "run", slurm)
    assert gate.prove_slurm(WORKERS, 0.01).startswith("Slurm does not offer every node:")
