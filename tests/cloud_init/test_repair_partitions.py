"""Closed partitions: what the repair service sets down and up again, with a fake scontrol in Slurm 24.11's format."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from repair.partitions import Closed

SPENT = {"a": "spent", "b": "spent"}


class CrashError(Exception):
    """The head stops at this moment."""


@dataclass
class Partitions:
    """slurmctld's partitions. The call with the number `crash_at` does not return."""

    states: dict[str, str] = field(default_factory=lambda: {"a": "UP", "b": "UP"})
    calls: list[str] = field(default_factory=list)
    crash_at: int = -1
    fails: bool = False

    def __call__(self, *arguments: str) -> str | None:
        if arguments == ("-o", "show", "partition"):
            rows = (
                f"PartitionName={name} Nodes=n-0 State={state} TotalCPUs=8\n" for name, state in self.states.items()
            )
            return None if self.fails else "".join(rows)
        if len(self.calls) == self.crash_at:
            raise CrashError
        self.calls.append(" ".join(arguments))
        if self.fails:
            return None
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        self.states[values["partitionname"]] = values["state"].upper()
        return ""


def test_partitions_are_closed_once_and_opened_again(tmp_path: Path) -> None:
    slurm, path = Partitions(), tmp_path / "closed"
    for _ in range(3):
        Closed(path, slurm).keep(SPENT)
    assert sorted(slurm.calls) == ["update partitionname=a state=down", "update partitionname=b state=down"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text()) == {"a": ["spent", "UP"], "b": ["spent", "UP"]}
    Closed(path, slurm).keep({"b": "asleep"})
    assert slurm.states == {"a": "UP", "b": "DOWN"}
    Closed(path, slurm).keep({})
    assert (slurm.states, json.loads(path.read_text())) == ({"a": "UP", "b": "UP"}, {})


@pytest.mark.parametrize(("state", "during"), [("DOWN", "DOWN"), ("INACTIVE", "INACTIVE"), ("DRAIN", "DOWN")])
def test_the_state_that_a_person_has_set_is_kept(tmp_path: Path, state: str, during: str) -> None:
    slurm = Partitions({"a": state, "b": "UP"})
    closed = Closed(tmp_path / "closed", slurm)
    closed.keep(SPENT)
    assert slurm.states == {"a": during, "b": "DOWN"}
    closed.keep({})
    assert slurm.states == {"a": state, "b": "UP"}


@pytest.mark.parametrize("before", ["UP", "DRAIN"])
def test_a_restart_of_slurmctld_opens_no_closed_partition(tmp_path: Path, before: str) -> None:
    slurm = Partitions({"a": before, "b": "UP"})
    closed = Closed(tmp_path / "closed", slurm)
    closed.keep(SPENT)
    slurm.states = {"a": "UP", "b": "UP", "c": "UP"}
    closed.keep(SPENT)
    assert slurm.states == {"a": "DOWN", "b": "DOWN", "c": "UP"}
    closed.keep({})
    assert slurm.states == {"a": before, "b": "UP", "c": "UP"}


@pytest.mark.parametrize("wanted", [SPENT, {}, {"a": "spent"}])
@pytest.mark.parametrize("crash_at", range(5))
def test_a_crash_at_any_moment_leaves_no_partition_down(tmp_path: Path, wanted: dict[str, str], crash_at: int) -> None:
    slurm, path = Partitions({"a": "UP", "b": "UP", "mine": "DOWN"}, crash_at=crash_at), tmp_path / "closed"
    with suppress(CrashError):
        for step in (SPENT, wanted, SPENT):
            Closed(path, slurm).keep(step)
    slurm.crash_at = -1
    Closed(path, slurm).keep({})
    assert slurm.states == {"a": "UP", "b": "UP", "mine": "DOWN"}


def test_a_failed_scontrol_is_repeated_and_a_removed_partition_forgotten(tmp_path: Path) -> None:
    slurm, path = Partitions(), tmp_path / "closed"
    closed = Closed(path, slurm)
    closed.keep(SPENT)
    slurm.fails = True
    closed.keep({})
    assert set(json.loads(path.read_text())) == {"a", "b"}
    slurm.fails = False
    del slurm.states["b"]
    closed.keep({})
    assert (slurm.states, json.loads(path.read_text())) == ({"a": "UP"}, {})


def test_damaged_record_opens_no_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "closed"
    path.write_text("{")
    slurm = Partitions({"a": "DOWN"})
    Closed(path, slurm).keep({})
    assert slurm.calls == []
    assert "Partitions that are down stay down" in capsys.readouterr().err
