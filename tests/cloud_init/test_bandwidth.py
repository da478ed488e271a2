"""The bandwidth gate of trainyard-gate, with a simulated network."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import bandwidth.program
import pytest
from bandwidth.program import command, measure, parse, run_gate
from bandwidth.results import Group, Measured, Node, Pair, Record, judge, load, rounds, save

from yard.workloads import allreduce

NODES = ("a-0", "a-1", "a-2", "a-3")
GROUP = Group("a", None, None, 2, False, ("16G", "8G"), False, {})


@dataclass
class Site:
    """A fake cluster: the head's state folder, and the bandwidth of each node's network card in GB/s."""

    state: Path
    speed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NODES, 10.0))
    boots: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NODES, "boot-1"))
    busy: set[str] = field(default_factory=set)
    drained: dict[str, str] = field(default_factory=dict)
    runs: list[tuple[str, ...]] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    """Errors of the launcher by node."""
    corrupt: set[str] = field(default_factory=set)
    """Nodes with wrong data."""
    alone: float = 50.0
    """Bandwidth in GB/s of each node's GPUs."""

    def write(self, alone: float | None = None, pair: float | None = 5.0, drain_unmeasured: bool = False) -> None:
        for folder in ("handover", "nodes"):
            (self.state / folder).mkdir(exist_ok=True)
        group = asdict(replace(GROUP, alone=alone, pair=pair, sizes=("4M", "4M"), drain_unmeasured=drain_unmeasured))
        del group["name"]
        (self.state / "handover" / "gates.json").write_text(json.dumps({"a": group}))
        lines = (f"{name} 10.0.0.{index + 4} a 2 any\n" for index, name in enumerate(NODES))
        (self.state / "handover" / "nodes").write_text("".join(lines))
        for name, boot in self.boots.items():
            (self.state / "nodes" / f"{name}.json").write_text(json.dumps({"boot_id": boot}))

    def measure(self, nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> Measured | None:
        """Return the bandwidth of the slowest node's network card, or the GPU bandwidth if there is only one node."""
        names = tuple(node.name for node in nodes)
        self.runs.append(names)
        for name in names:
            if name in self.broken:
                return Measured(None, self.broken[name])
        if not self.corrupt.isdisjoint(names):
            return Measured(None, "3 wrong elements", wrong=True)
        if not self.busy.isdisjoint(names):
            return None
        return Measured(min(self.speed[name] for name in names) if len(names) > 1 else self.alone)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(bandwidth.program, "nodes_in", lambda _: set(NODES) - made.drained.keys())
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


@pytest.mark.parametrize("speed", [10.0, 1.0])
def test_a_drained_node_is_measured_after_a_reboot(site: Site, speed: float) -> None:
    site.speed["a-1"] = 1.0
    run_gate(site.state, site.measure)
    run_gate(site.state, site.measure)
    assert set(site.drained) == {"a-1"}  # without a reboot, the verdict stays
    site.speed["a-1"], site.boots["a-1"] = speed, "boot-2"
    site.write()
    run_gate(site.state, site.measure)
    assert set(site.drained) == ({"a-1"} if speed == 1.0 else set())


def test_a_busy_node_is_measured_by_the_next_run(site: Site) -> None:
    site.busy = {"a-3"}
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}
    site.busy, site.speed["a-3"] = set(), 1.0
    run_gate(site.state, site.measure)
    assert set(site.drained) == {"a-3"}


def test_closed_partitions_are_measured_by_a_later_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth.program, "closed", lambda: {"a": "spent"})
    assert run_gate(site.state, site.measure) == []
    assert site.runs == []
    monkeypatch.setattr(bandwidth.program, "closed", dict)
    assert run_gate(site.state, site.measure) == []
    assert site.runs


def test_a_second_gate_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth.program, "STATE", tmp_path)

    def second_gate(_: Path) -> list[str]:
        with (tmp_path / bandwidth.program.LOCK).open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ["ran"]

    monkeypatch.setattr(bandwidth.program, "run_gate", second_gate)
    assert bandwidth.program.main() == 1


@pytest.mark.parametrize(
    ("alone", "pair", "problem"),
    [
        (60.0, 5.0, "slow or wrong on 4 of 4 nodes (floor 60 GB/s)"),
        # All pairs are slow, so the slow nodes cannot be determined.
        (None, 11.0, "no other pair shows which of the two nodes is faulty"),
    ],
)
def test_an_undetermined_fault_fails_until_it_is_repaired(
    site: Site, alone: float | None, pair: float, problem: str
) -> None:
    run_gate(site.state, site.measure)
    # With a changed floor, all nodes are measured again.
    site.write(alone=alone, pair=pair)
    first = run_gate(site.state, site.measure)
    assert problem in first[0]
    assert site.drained == {}
    assert run_gate(site.state, site.measure) == first
    site.speed, site.alone = dict.fromkeys(NODES, 20.0), 70.0
    assert run_gate(site.state, site.measure) == []


PMIX = "the all-reduce failed with exit code 1: slurmstepd: error: mpi/pmix: cannot load the plugin"


def test_a_failed_launch_is_a_warning(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.broken = dict.fromkeys(NODES, PMIX)
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}
    printed = capsys.readouterr().out
    assert f"a-0, a-1, a-2, a-3, a-0 with a-3, a-1 with a-2, a-0 with a-2, a-3 with a-1: {PMIX}" in printed
    # The next run measures the nodes again.
    site.broken = {}
    site.runs.clear()
    assert run_gate(site.state, site.measure) == []
    assert {name for names in site.runs for name in names} == set(NODES)


def test_an_unmeasured_node_is_drained_on_demand(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write(drain_unmeasured=True)
    site.broken = {"a-2": f"{PMIX}\n    second line"}
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {"a-2": f"not measured: {PMIX}"}
    assert f"a-2 is drained: all-reduce was not measured: {PMIX}" in capsys.readouterr().out
    site.broken = {}
    assert run_gate(site.state, site.measure) == []
    assert site.drained == {}


@pytest.mark.parametrize("floor", [5.0, None])
def test_wrong_data_drains_a_node_with_any_floor(site: Site, floor: float | None) -> None:
    site.write(pair=floor)
    site.corrupt = {"a-1"}
    assert run_gate(site.state, site.measure) == []
    assert site.drained.keys() == {"a-1"}
    assert "3 wrong elements" in site.drained["a-1"]


def test_a_slow_node_is_found_next_to_a_failed_launch(site: Site) -> None:
    site.broken, site.speed["a-1"] = {"a-3": PMIX}, 1.0
    run_gate(site.state, site.measure)
    assert site.drained.keys() == {"a-1"}


def test_without_floors_results_are_recorded(site: Site) -> None:
    site.write(pair=None)
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


NCCL_TESTS = (
    "  4294967296    1073741824     float     sum      -1    "
    "20345  211.11  369.44      0    20111  213.56  373.73      WRONG\n"
    "# Out of bounds values : 0 OK\n"
)
OWN = " 4194304       1048576    float    sum     -1        -       -       -      - 235926.69    0.02    0.02      0\n"
"""A row that allreduce.py printed for two ranks on two virtual machines on 2026-11-22."""
RESULT = {"size": 4194304, "count": 1048576, "type": "float32", "time_us": 1000.0, "algbw": 4.19, "busbw": 6.29}


@pytest.mark.parametrize(
    ("output", "ranks", "size", "expected"),
    [
        (NCCL_TESTS.replace("WRONG", "0"), 8, "4G", 373.73),
        (OWN, 2, "4M", 0.01778),
        (allreduce.row({**RESULT, "wrong": 0}), 4, "4M", 6.291),
        (allreduce.row({**RESULT, "wrong": 1}), 4, "4M", "1 wrong elements"),
        (NCCL_TESTS.replace("WRONG", "3"), 8, "4G", "3 wrong elements"),
        # A result for a smaller message is not compared with the floor.
        (NCCL_TESTS.replace("WRONG", "0"), 8, "16G", "4294967296 bytes instead of 16G"),
        ("", 8, "4G", "printed no result"),
        ("Segmentation fault\n", 8, "4G", "Segmentation fault"),
    ],
)
def test_last_row_of_the_table_is_read(output: str, ranks: int, size: str, expected: float | str) -> None:
    result = parse(output, ranks, size)
    if isinstance(expected, float):
        assert result.busbw == pytest.approx(expected, rel=1e-3)
        return
    assert expected in result.problem
    assert (result.busbw, result.wrong) == (None, "wrong" in expected)


CHOICES = """\
AllReduce: 4 Bytes -> Algo TREE proto LL
AllReduce: 4294967296 Bytes -> Algo RING proto SIMPLE
AllReduce: 536870912 Bytes -> Algo NVLS proto LL128
"""


@pytest.mark.parametrize(
    ("lines", "algorithm"),
    [(CHOICES, "RING, SIMPLE"), ("", ""), ("AllReduce: 4294967296 Bytes -> Algo 1 proto 2 time 9.1\n", "")],
)
def test_algorithm_of_the_largest_message_is_recorded(lines: str, algorithm: str, tmp_path: Path) -> None:
    result = parse(NCCL_TESTS.replace("WRONG", "0") + lines, 8, "4G")
    assert (result.algorithm, result.problem) == (algorithm, "")
    save(tmp_path / "busbw.json", {"a": Record(alone={"a-0": result})})
    assert load(tmp_path / "busbw.json")["a"].alone == {"a-0": result}


def test_record_without_algorithms_remains_valid(tmp_path: Path) -> None:
    """An earlier version has written it. Otherwise, all nodes would be measured again."""
    save(tmp_path / "busbw.json", {"a": Record(alone={"a-0": Measured(372.5)}, pairs={("a-0", "a-1"): Measured(40.0)})})
    old = json.loads((tmp_path / "busbw.json").read_text())
    for row in (old["groups"]["a"]["alone"]["a-0"], *old["groups"]["a"]["pairs"]):
        del row["algorithm"]
    (tmp_path / "busbw.json").write_text(json.dumps(old))
    assert load(tmp_path / "busbw.json")["a"].alone == {"a-0": Measured(372.5)}


def test_measurements_at_the_same_time_use_other_ports() -> None:
    group = replace(GROUP, env={"NCCL_DEBUG": "WARN"})
    pair = [Node("a-0", "10.0.0.4", "a", "1"), Node("a-1", "10.0.0.5", "a", "1")]
    first, second = (command(pair, group, number, "pmix") for number in (0, 1))
    assert [a for a in first if a.startswith("MASTER_PORT")] != [a for a in second if a.startswith("MASTER_PORT")]
    assert "NCCL_DEBUG=WARN" in first
    assert "--nodelist=a-0,a-1" in first
    assert "BYTES=8G" in first
    assert "BYTES=16G" in command(pair[:1], group, 0, "pmix")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_first_rank_logs_what_nccl_chooses(rank: str, tmp_path: Path) -> None:
    """A fake program writes to NCCL's log. The log is deleted, and the program's exit code remains."""
    line = "vm:835:835 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"
    script = command([Node("a-0", "10.0.0.4", "a", "1")], replace(GROUP, real_gpus=True), 0, None)[-1]
    (tmp_path / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")
    script = script.replace("/etc/trainyard/fabric.env", str(tmp_path / "fabric.env"))
    program = tmp_path / "python3"
    program.write_text(
        f"#!/bin/sh\n[ \"$1\" != -c ] || exit 0\necho '{line}' >>${{NCCL_DEBUG_FILE:-/dev/null}}\nexit 3\n"
    )
    program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"), "SLURM_PROCID": rank}
    variables = {**os.environ, **own, "REAL_GPUS": "yes", "BYTES": "1G", "ITERATIONS": "20"}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=False)
    expected = "AllReduce: 1073741824 Bytes -> Algo RING proto SIMPLE\n" if rank == "0" else ""
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 3)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_mpi_of_hpcx_uses_tcp_and_no_hcoll(tmp_path: Path) -> None:
    script = command([Node("a-0", "10.0.0.4", "a", "1")], replace(GROUP, real_gpus=True), 0, "pmix")[-1]
    (tmp_path / "fabric.env").write_text(
        "GLOO_SOCKET_IFNAME=eth0\nNCCL_SOCKET_IFNAME==eth0\nUCX_NET_DEVICES=mlx5_ib0:1\n"
    )
    (tmp_path / "modules.sh").write_text('module() { echo "module $*"; }\n')
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/usr/bin/env bash\nenv; echo arguments $*\n")
    program.chmod(0o755)
    for path in ("/etc/trainyard/fabric.env", "/etc/profile.d/modules.sh", "/opt/nccl-tests/build/all_reduce_perf"):
        assert path in script
        script = script.replace(path, str(tmp_path / Path(path).name))
    variables = {**os.environ, "REAL_GPUS": "yes", "BYTES": "16G", "ITERATIONS": "20"}
    printed = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True).stdout
    lines = printed.splitlines()
    assert "module load mpi/hpcx" in lines
    assert {"OMPI_MCA_coll_hcoll_enable=0", "UCX_TLS=tcp", "UCX_NET_DEVICES=eth0"} <= set(lines)
    assert "arguments -b 16G -e 16G -g 1 -c 1 -n 20" in lines


LAUNCHER = "srun: error: a-0: tasks 0-1: Exited with exit code 1\nslurmstepd: error: *** STEP 4.0 CANCELLED ***"


@pytest.mark.parametrize(
    ("code", "output", "errors", "expected"),
    [
        (0, OWN, "", 0.01778),
        (1, "", f"line 1\nRuntimeError: no libuv\n{LAUNCHER}", "exit code 1: line 1\n    RuntimeError: no libuv"),
        (1, "", f"slurmstepd: error: mpi/pmix: no library\n{LAUNCHER}", "slurmstepd: error: mpi/pmix: no library"),
        (1, "", LAUNCHER, LAUNCHER.replace("\n", "\n    ")),
        (139, OWN, "Segmentation fault", "exit code 139: Segmentation fault"),
        (124, "", "", "has not finished within 600 s"),
        (90, "", "", "neither nccl-tests in /opt/nccl-tests nor torch"),
        (1, OWN.replace("0.02      0", "0.02      5"), "", "5 wrong elements"),
        (1, "", "srun: error: Unable to allocate resources: Requested nodes are busy", None),
    ],
)
def test_exit_of_srun_is_judged(
    code: int, output: str, errors: str, expected: float | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], code, output, errors)
    monkeypatch.setattr("bandwidth.program.run", lambda *_: done)
    result = measure([Node("a-0", "10.0.0.4", "a", "1")], replace(GROUP, sizes=("4M", "4M")), 0, None)
    if expected is None:
        assert result is None
        return
    assert result is not None
    if isinstance(expected, str):
        assert expected in result.problem
        assert result.wrong == ("wrong" in expected)
    else:
        assert result.busbw == pytest.approx(expected, rel=1e-3)


def names(size: int) -> list[str]:
    return [f"n-{index}" for index in range(size)]


@pytest.mark.parametrize("size", range(12))
def test_each_node_has_two_partners_in_disjoint_pairs(size: int) -> None:
    partners: dict[str, set[str]] = {name: set() for name in names(size)}
    for pairs in rounds(names(size), names(size)):
        used = [name for pair in pairs for name in pair]
        assert len(used) == len(set(used))
        for first, second in pairs:
            partners[first].add(second)
            partners[second].add(first)
    assert all(len(found) >= min(2, size - 1) for found in partners.values())


@pytest.mark.parametrize("size", range(3, 12))
def test_each_single_slow_node_is_found(size: int) -> None:
    for slow in names(size):
        pairs: list[Pair] = [pair for found in rounds(names(size), names(size)) for pair in found]
        verdict = judge({pair: Measured(1.0 if slow in pair else 10.0) for pair in pairs}, 5.0)
        assert (set(verdict.suspects), verdict.undecided) == ({slow}, ())


GOOD, SLOW, WRONG, FAILED = Measured(10.0), Measured(1.0), Measured(None, "wrong", wrong=True), Measured(None, "failed")


@pytest.mark.parametrize(
    ("results", "suspects", "undecided"),
    [
        ({("a", "b"): GOOD, ("a", "c"): WRONG, ("b", "c"): WRONG}, {"c"}, ()),
        ({("a", "b"): GOOD, ("a", "c"): FAILED, ("b", "c"): FAILED}, set(), ()),
        ({("a", "b"): SLOW}, set(), (("a", "b"),)),
    ],
    ids=["wrong data", "failed launch", "two nodes"],
)
def test_faulty_node_is_the_one_without_a_good_pair(
    results: dict[Pair, Measured], suspects: set[str], undecided: tuple[Pair, ...]
) -> None:
    verdict = judge(results, 5.0)
    assert (set(verdict.suspects), verdict.undecided) == (suspects, undecided)
