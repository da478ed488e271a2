"""The bandwidth gate with a simulated network and fake Slurm commands."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bandwidth.program
import pytest
from bandwidth.groups import Group, Node, load
from bandwidth.measure import NoProgramError, command, measure, parse
from bandwidth.pairs import Measured
from bandwidth.program import run_gate

from yard.workloads import allreduce

NODES = ("a-0", "a-1", "a-2", "a-3")


@dataclass
class Site:
    """A fake cluster. `state` is the head's state folder, and `speed` is the bandwidth of each network card in GB/s."""

    state: Path
    speed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NODES, 10.0))
    boots: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NODES, "boot-1"))
    busy: set[str] = field(default_factory=set)
    drained: dict[str, str] = field(default_factory=dict)
    runs: list[tuple[str, ...]] = field(default_factory=list)
    has_program: bool = True
    alone: float = 50.0
    """Bandwidth in GB/s of each node's GPUs."""

    def write(self, alone: float | None = None, pair: float | None = 5.0, required: bool = True) -> None:
        """Write the hand-over and the nodes' statuses."""
        for folder in ("handover", "nodes"):
            (self.state / folder).mkdir(exist_ok=True)
        group: dict[str, Any] = {
            "alone": alone,
            "pair": pair,
            "ranks": 2,
            "real_gpus": False,
            "required": required,
            "env": {},
        }
        (self.state / "handover" / "gates.json").write_text(json.dumps({"a": group}))
        lines = (f"{name} 10.0.0.{index + 4} a 2 any\n" for index, name in enumerate(NODES))
        (self.state / "handover" / "nodes").write_text("".join(lines))
        for name, boot in self.boots.items():
            (self.state / "nodes" / f"{name}.json").write_text(json.dumps({"boot_id": boot}))

    def measure(self, nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> Measured | None:
        """Return the bandwidth of the slowest node's network card, or the GPU bandwidth if there is only one node."""
        names = tuple(node.name for node in nodes)
        self.runs.append(names)
        if not self.has_program:
            raise NoProgramError
        if not self.busy.isdisjoint(names):
            return None
        return Measured(min(self.speed[name] for name in names) if len(names) > 1 else self.alone)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(bandwidth.program, "idle", lambda: set(NODES) - made.drained.keys())
    monkeypatch.setattr(bandwidth.program, "drained", lambda: set(made.drained))
    monkeypatch.setattr(bandwidth.program, "drain", made.drained.__setitem__)
    monkeypatch.setattr(bandwidth.program, "resume", lambda names: [made.drained.pop(name) for name in names])
    monkeypatch.setattr(bandwidth.program, "mpi_of_slurm", lambda: None)
    made.write()
    return made


@pytest.mark.parametrize("slow", NODES)
def test_a_slow_node_is_drained_and_named(site: Site, slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    site.speed[slow] = 1.0
    assert run_gate(site.state, site.measure) == []
    assert set(site.drained) == {slow}
    assert re.search(r"with a-\d: 1 GB/s, floor 5 GB/s", site.drained[slow])
    assert f"{slow} is drained" in capsys.readouterr().out


def test_a_fast_cluster_is_measured_once(site: Site) -> None:
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}
    count = len(site.runs)
    assert run_gate(site.state, site.measure) == []
    assert len(site.runs) == count


def test_a_rebooted_node_is_measured_again(site: Site) -> None:
    run_gate(site.state, site.measure)
    site.runs.clear()
    site.boots["a-2"] = "boot-2"
    site.write()
    run_gate(site.state, site.measure)
    assert site.runs
    assert all("a-2" in names for names in site.runs)


def test_a_changed_floor_measures_all_nodes_again(site: Site) -> None:
    run_gate(site.state, site.measure)
    site.write(pair=11.0)
    problems = run_gate(site.state, site.measure)
    assert site.drained == {}  # all pairs are slow, so the slow node cannot be determined
    assert len(problems) == len({pair for pair in load(site.state / "busbw.json")["a"].pairs})
    assert "no other pair shows which of the two nodes is slow" in problems[0]


def test_a_repaired_node_returns_after_a_measurement(site: Site) -> None:
    site.speed["a-1"] = 1.0
    run_gate(site.state, site.measure)
    run_gate(site.state, site.measure)
    assert set(site.drained) == {"a-1"}  # without a reboot, the verdict stays
    site.speed["a-1"], site.boots["a-1"] = 10.0, "boot-2"
    site.write()
    run_gate(site.state, site.measure)
    assert site.drained == {}


def test_a_still_slow_node_is_drained_again(site: Site) -> None:
    site.speed["a-1"] = 1.0
    run_gate(site.state, site.measure)
    site.boots["a-1"] = "boot-2"
    site.write()
    run_gate(site.state, site.measure)
    assert set(site.drained) == {"a-1"}


def test_a_busy_node_is_measured_by_the_next_run(site: Site) -> None:
    site.busy = {"a-3"}
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}
    site.busy, site.speed["a-3"] = set(), 1.0
    run_gate(site.state, site.measure)
    assert set(site.drained) == {"a-3"}


def test_a_common_fault_drains_no_node(site: Site) -> None:
    site.write(alone=60.0)
    problems = run_gate(site.state, site.measure)
    assert site.drained == {}
    assert "4 of 4 nodes are below the floor of 60 GB/s" in problems[0]


def test_a_second_gate_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth.program, "STATE", tmp_path)
    free: list[bool] = []

    def try_lock(_: Path) -> list[str]:
        with (tmp_path / bandwidth.program.LOCK).open("w") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free.append(False)
                return []
        free.append(True)
        return []

    monkeypatch.setattr(bandwidth.program, "run_gate", try_lock)
    assert bandwidth.program.main() == 0
    try_lock(tmp_path)
    assert free == [False, True]


@pytest.mark.parametrize(("alone", "pair"), [(60.0, 5.0), (None, 11.0)])
def test_an_undetermined_fault_fails_until_it_is_repaired(site: Site, alone: float | None, pair: float) -> None:
    site.write(alone=alone, pair=pair)
    first = run_gate(site.state, site.measure)
    assert first
    assert run_gate(site.state, site.measure) == first
    site.speed, site.alone = dict.fromkeys(NODES, 20.0), 70.0
    assert run_gate(site.state, site.measure) == []


@pytest.mark.parametrize("required", [True, False])
def test_a_missing_program_fails_only_with_a_set_floor(site: Site, required: bool) -> None:
    site.has_program = False
    site.write(required=required)
    assert bool(run_gate(site.state, site.measure)) == required
    assert site.drained == {}


def test_without_floors_results_are_recorded(site: Site) -> None:
    site.write(pair=None, required=False)
    site.speed["a-1"] = 0.1
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}
    record = load(site.state / "busbw.json")["a"]
    assert {result.busbw for pair, result in record.pairs.items() if "a-1" in pair} == {0.1}
    assert (site.state / "busbw.svg").read_text().count("<rect") == len(record.pairs) + len(record.alone)


def test_without_parameters_nothing_is_measured(site: Site) -> None:
    (site.state / "handover" / "gates.json").unlink()
    assert run_gate(site.state, site.measure) == []
    assert site.runs == []


_COLUMNS = "time   algbw   busbw #wrong"
NCCL_TESTS = (
    f"#       size         count      type   redop    root     {_COLUMNS}     {_COLUMNS}\n"
    "  4294967296    1073741824     float     sum      -1    "
    "20345  211.11  369.44      0    20111  213.56  373.73      WRONG\n"
    "# Out of bounds values : 0 OK\n"
)
OWN = " 4194304       1048576    float    sum     -1        -       -       -      - 235926.69    0.02    0.02      0\n"
"""A row that allreduce.py printed for two ranks on two virtual machines on 2026-11-22."""


@pytest.mark.parametrize(
    ("output", "ranks", "expected"), [(NCCL_TESTS.replace("WRONG", "0"), 8, 373.73), (OWN, 2, 0.01778)]
)
def test_the_last_row_of_the_table_is_read(output: str, ranks: int, expected: float) -> None:
    assert parse(output, ranks).busbw == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_table_of_the_own_program_is_read(wrong: int) -> None:
    result = {"size": 4194304, "count": 1048576, "type": "float32", "time_us": 1000.0, "algbw": 4.19, "busbw": 6.29}
    printed = allreduce.row({**result, "wrong": wrong})
    assert parse(printed, 4).busbw == (None if wrong else pytest.approx(6.291, rel=1e-3))


@pytest.mark.parametrize("output", [NCCL_TESTS.replace("WRONG", "3"), "", "Segmentation fault\n"])
def test_wrong_elements_and_missing_rows_are_failures(output: str) -> None:
    result = parse(output, 8)
    assert result.busbw is None
    assert result.problem


def test_measurements_at_the_same_time_use_other_ports() -> None:
    group = Group("a", None, None, 2, False, True, {"NCCL_DEBUG": "WARN"})
    pair = [Node("a-0", "10.0.0.4", "a", "1"), Node("a-1", "10.0.0.5", "a", "1")]
    first, second = (command(pair, group, number, "pmix") for number in (0, 1))
    assert [a for a in first if a.startswith("MASTER_PORT")] != [a for a in second if a.startswith("MASTER_PORT")]
    assert "NCCL_DEBUG=WARN" in first
    assert "--nodelist=a-0,a-1" in first


@pytest.mark.parametrize(
    ("code", "errors", "expected"),
    [
        (0, "", 0.01778),
        (1, "RuntimeError: connection refused\nsrun: Force Terminated StepId=3.0", "connection refused"),
        (1, "RuntimeError: no libuv\nslurmstepd-a-0: error: *** STEP 4.0 CANCELLED ***", "no libuv"),
        (1, "srun: error: Unable to allocate resources: Requested nodes are busy", None),
    ],
)
def test_exit_of_srun_is_judged(
    code: int, errors: str, expected: float | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, OWN, errors)
    monkeypatch.setattr("bandwidth.measure.subprocess.run", lambda *_, **__: done)
    group = Group("a", None, None, 2, False, True, {})
    result = measure([Node("a-0", "10.0.0.4", "a", "1")], group, 0, None)
    if isinstance(expected, str):
        assert result is not None
        assert expected in result.problem
    elif expected is None:
        assert result is None
    else:
        assert result is not None
        assert result.busbw == pytest.approx(expected, rel=1e-3)
