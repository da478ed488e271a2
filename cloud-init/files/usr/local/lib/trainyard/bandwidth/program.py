"""The program `trainyard-bandwidth`, which the gate on the head runs after Slurm has started a task on every node.

It measures new and rebooted nodes: each node alone, then pairs of nodes. A bad node (below the floor, or wrong data) is
measured again with a good partner. If the node is still bad, it is drained with the cause `bandwidth`. If the
all-reduce cannot be started or prints no result, the program only prints a warning, because this is no evidence about
the nodes. With `drain_unmeasured`, it also drains the nodes that have no other result.

Exit code 0: no node is bad, or each bad node is drained. Exit code 1: the bad nodes cannot be determined.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gate.nodes import idle_nodes, reasons, run

from bandwidth.measure import measure, mpi_of_slurm
from bandwidth.results import (
    Group,
    Measured,
    Node,
    Pair,
    Record,
    draw,
    judge,
    load,
    read_groups,
    read_nodes,
    rounds,
    save,
)
from trainyard.faults import BANDWIDTH, cause_of, is_epidemic, reason_for

STATE = Path("/var/lib/trainyard")
LOCK = "bandwidth.lock"
"""Prevents simultaneous gates. After an interrupted `up`, its gate still runs and uses the nodes."""
FIX = "Fix: replace the node's machine with `yard roll`, or set another floor with gates.nccl_busbw"
Measure = Callable[[Sequence[Node], Group, int, str | None], Measured | None]


def drained() -> set[str]:
    """Return the nodes that the gate has drained."""
    return {name for name, reason in reasons("drain").items() if cause_of(reason) == BANDWIDTH}


def drain(name: str, reason: str) -> None:
    """Drain a node. Running jobs continue."""
    _update(name, "state=drain", f"reason={reason_for(BANDWIDTH, reason)}")


def resume(names: Iterable[str]) -> None:
    """Return nodes to service."""
    for name in sorted(names):
        _update(name, "state=resume")


def _update(name: str, *values: str) -> None:
    run("scontrol", "update", f"nodename={name}", *values).check_returncode()


def say(line: str) -> None:
    """Print a line without buffering, because the output is a pipe to `trainyard-gate`."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Gate:
    """The gate of one group."""

    group: Group
    nodes: dict[str, Node]
    """The nodes that can be measured now, by name."""
    record: Record
    mpi: str | None
    measure: Measure
    problems: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """Nodes that were allocated to a job before they were measured. The next run of the gate measures these nodes."""
    unsettled: set[str] = field(default_factory=set)
    """Nodes without a result, and nodes of bad pairs in which the faulty node is unknown. The next run measures these
    nodes again. Without this, the next run would succeed."""
    failed: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """Sets of nodes that could not be measured, by reason."""

    def run(self) -> None:
        """Measure the nodes that have no result since their last boot. Add results and problems."""
        fresh = [name for name in self.nodes if name not in self.record.boots]
        if not fresh:
            return
        say(f"group {self.group.name}: measuring all-reduce on {', '.join(fresh)}")
        self._measure_alone(fresh)
        usable = [name for name in self.nodes if name not in self.record.faulty]
        for pairs in rounds(usable, fresh):
            self._measure_pairs(pairs)
        self._judge(usable)
        self._report_unmeasured()
        again = self.busy | self.unsettled
        self.record.boots = {name: boot for name, boot in self.record.boots.items() if name not in self.unsettled}
        self.record.boots |= {name: self.nodes[name].boot_id for name in fresh if name not in again}
        self._describe()

    def _measure_alone(self, names: Sequence[str]) -> None:
        if self.group.ranks == 1:
            return
        results = self._measure_all([(name,) for name in names])
        again = [nodes for nodes, result in results.items() if result.is_bad(self.group.alone)]
        results |= self._measure_all(again)
        self.record.alone |= {name: result for (name,), result in results.items()}
        slow = {
            name: f"alone: {results[name,]}"
            for (name,) in again
            if results[name,].is_bad(self.group.alone) and name not in self.busy
        }
        self._condemn(slow, names, self.group.alone)

    def _measure_pairs(self, pairs: Iterable[Pair]) -> None:
        self.record.pairs |= {(a, b): result for (a, b), result in self._measure_all(list(pairs)).items()}

    def _measure_all(self, sets: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Measured]:
        """Measure disjoint sets of nodes at the same time. Return the results of the nodes that were not busy."""
        with ThreadPoolExecutor(max_workers=max(1, len(sets))) as pool:
            results = pool.map(
                lambda item: self.measure([self.nodes[name] for name in item[1]], self.group, item[0], self.mpi),
                enumerate(sets),
            )
            found = dict(zip(sets, results, strict=True))
        self.busy |= {name for names, result in found.items() if result is None for name in names}
        for names, result in found.items():
            if result is not None and result.busbw is None and not result.wrong:
                self.failed.setdefault(result.problem, []).append(names)
        return {names: result for names, result in found.items() if result is not None}

    def _judge(self, usable: Sequence[str]) -> None:
        known = {pair: result for pair, result in self.record.pairs.items() if set(pair) <= set(usable)}
        verdict = judge(known, self.group.pair)
        slow = {}
        for suspect, pair in verdict.suspects.items():
            self._measure_pairs([pair])
            result = self.record.pairs[pair]
            if result.is_bad(self.group.pair) and self.busy.isdisjoint(pair):
                partner = pair[0] if suspect == pair[1] else pair[1]
                slow[suspect] = f"with {partner}: {result}"
        self._condemn(slow, usable, self.group.pair)
        self.unsettled |= {name for pair in verdict.undecided for name in pair}
        self.problems += [
            f"{first} and {second}: all-reduce: {known[first, second]} ({_floor(self.group.pair)}), and no other pair "
            f"shows which of the two nodes is faulty. {FIX}"
            for first, second in verdict.undecided
        ]

    def _report_unmeasured(self) -> None:
        """Print the reason of each failed launch with its nodes. Drain the nodes if the stack file demands this."""
        for problem, sets in self.failed.items():
            where = ", ".join(" with ".join(names) for names in sets)
            say(f"warning: group {self.group.name}: all-reduce was not measured on {where}: {problem}")
        good = {name for pair, result in self.record.pairs.items() if result.is_good(self.group.pair) for name in pair}
        good |= {name for name, result in self.record.alone.items() if result.is_good(self.group.alone)}
        unmeasured = {
            name: problem.splitlines()[0]
            for problem, sets in self.failed.items()
            for names in sets
            for name in names
            if name not in good and name not in self.record.faulty
        }
        self.unsettled |= {name for sets in self.failed.values() for names in sets for name in names}
        if self.group.drain_unmeasured:
            for name, problem in unmeasured.items():
                drain(name, f"not measured: {problem}")
                self.record.faulty[name] = f"was not measured: {problem}"

    def _condemn(self, slow: dict[str, str], names: Sequence[str], floor: float | None) -> None:
        """Drain the nodes in `slow`, which maps them to results, unless a common cause is likely."""
        if is_epidemic(len(slow), len(names)):
            self.unsettled |= slow.keys()
            shown = "; ".join(f"{name} {text}" for name, text in slow.items())
            self.problems.append(
                f"group {self.group.name}: all-reduce is slow or wrong on {len(slow)} of {len(names)} nodes "
                f"({_floor(floor)}), so the cause is probably common to all nodes and none is drained: {shown}. Fix: "
                "check the network and the floor in gates.nccl_busbw"
            )
        else:
            for name, text in slow.items():
                reason = f"{text}, {_floor(floor)}"
                drain(name, reason)
                self.record.faulty[name] = reason

    def _describe(self) -> None:
        for title, results, floor in (
            ("alone", self.record.alone, self.group.alone),
            ("pairs", self.record.pairs, self.group.pair),
        ):
            values = [result.busbw for result in results.values() if result.busbw is not None]
            if values:
                say(
                    f"group {self.group.name}, {title}: {min(values):.4g} to {max(values):.4g} GB/s in {len(values)} "
                    f"measurements ({_floor(floor)})"
                )


def _floor(value: float | None) -> str:
    return "no floor is recorded" if value is None else f"floor {value:g} GB/s"


def run_gate(state: Path, measure_nodes: Measure = measure) -> list[str]:
    """Measure all groups and store the results. Return the problems."""
    groups, nodes, stored = (
        read_groups(state / "handover" / "gates.json"),
        read_nodes(state),
        load(state / "busbw.json"),
    )
    mpi = mpi_of_slurm() if groups else None
    problems: list[str] = []
    records: dict[str, Record] = {}
    for group in groups:
        record = records[group.name] = stored.get(group.name, Record())
        members = {node.name: node for node in nodes if node.group == group.name}
        valid = {name for name, node in members.items() if record.boots.get(name) == node.boot_id}
        record.keep(valid, group)
        resume(drained() & set(members) - set(record.faulty))
        free = idle_nodes()
        gate = Gate(group, {name: node for name, node in members.items() if name in free}, record, mpi, measure_nodes)
        gate.run()
        problems += gate.problems
        save(state / "busbw.json", records)
    if records:
        (state / "busbw.svg").write_text(draw(records))
    for group in groups:
        for name, reason in records[group.name].faulty.items():
            say(f"{name} is drained: all-reduce {reason}. {FIX}")
    return problems


def main() -> int:
    """Wait until no other gate is running, and run the gate. Return the exit code."""
    with (STATE / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        problems = run_gate(STATE)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0
