"""A failed job names the fault of its node."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.outputs import Cluster
from yard.run.jobs import expand, node_faults
from yard.run.queue import Job, parse_scontrol

END = 1795380000.0


class Head:
    """A head that runs commands on this computer."""

    def __init__(self, cluster: Cluster) -> None:
        self.stack: Any = type("Stack", (), {"cluster": cluster})()
        self.lines: list[str] = []

    def run(self, line: str) -> str:
        self.lines.append(line)
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def head(local: Cluster, tmp_path: Path) -> Head:
    """A head with the run folder of job 3, which ended at END."""
    (tmp_path / "jobs" / "a").mkdir(parents=True)
    (tmp_path / "jobs" / "a" / "events").write_text(f"{END - 60:.0f} start 0 yard-gpu-[0-1]\n{END:.0f} end 141\n")
    return Head(replace(local, shared_path=str(tmp_path), state_dir=str(tmp_path)))


def job(head: Head, state: str = "FAILED") -> Job:
    folder = f"{head.stack.cluster.shared_path}/jobs/a"
    [found] = parse_scontrol(f"JobId=3 JobState={state} ExitCode=141:0 NodeList=yard-gpu-[0-1] WorkDir={folder}")
    return found


@pytest.mark.parametrize(
    ("node", "seconds", "reason", "is_named"),
    [
        ("yard-gpu-1", 25, "Not responding", True),
        ("yard-gpu-1", -500, "TY:munge: munge does not work", True),
        ("yard-gpu-1", -900, "Not responding", False),
        ("yard-gpu-1", 25, "", False),
        ("yard-gpu-1", 25, "new cable", False),
        ("yard-gpu-2", 25, "Not responding", False),
    ],
)
def test_a_fault_near_the_end_is_named(head: Head, node: str, seconds: float, reason: str, is_named: bool) -> None:
    history = {"history": {node: [{"time": END + seconds, "reason": reason}]}}
    Path(head.stack.cluster.state_dir, "repair.json").write_text(json.dumps(history) + "\n")
    found = node_faults(head, [job(head)])  # type: ignore[arg-type]
    assert (list(found) == [3]) is is_named
    if is_named:
        assert found[3].startswith("node yard-gpu-1 had a fault at ")
        assert reason in found[3]


def test_jobs_without_a_failure_cost_no_connection(head: Head) -> None:
    assert node_faults(head, [job(head, "COMPLETED"), job(head, "RUNNING")]) == {}  # type: ignore[arg-type]
    assert head.lines == []
    assert node_faults(head, [job(head)]) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a-0", ["a-0"]),
        ("a-[0-1,3],b-7", ["a-0", "a-1", "a-3", "b-7"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
    ],
)
def test_node_lists_are_expanded(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names
