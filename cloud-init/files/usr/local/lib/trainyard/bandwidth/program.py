"""The program `trainyard-bandwidth`, which the gate on the head runs after Slurm has started a task on every node.

It measures new and rebooted nodes: each node alone, then pairs of nodes. A node below the floor is measured again with
a good partner. If the node is still below the floor, it is drained with the reason `TY:bandwidth: ...`.

Exit code 0: no node is below its floor, or each slow node is drained. Exit code 1: the nodes of a group could not be
measured although the stack file sets a floor, or the slow nodes cannot be determined.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bandwidth.groups import Group, Node, Record, load, read_groups, read_nodes, save
from bandwidth.measure import NoProgramError, measure, mpi_of_slurm
from bandwidth.pairs import Measured, Pair, is_common_fault, judge, rounds
from bandwidth.plot import draw
from bandwidth.slurm import drain, drained, idle, resume

STATE = Path("/var/lib/trainyard")
LOCK = "bandwidth.lock"
"""Prevents simultaneous gates. After an interrupted `up`, its gate still runs and uses the nodes."""
FIX = "Fix: replace the node's machine with `yard roll`, or set another floor with gates.nccl_busbw"
Measure = Callable[[Sequence[Node], Group, int, str | None], Measured | None]
NO_PROGRAM = "a node has neither nccl-tests in /opt/nccl-tests nor torch for its python3"


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
    """Nodes of slow pairs in which the slow node is unknown. The next run measures these nodes again.
    Without this, the next run would succeed."""

    def run(self) -> None:
        """Measure the nodes that have no result since their last boot. Add results and problems."""
        fresh = [name for name in self.nodes if name not in self.record.boots]
        if not fresh:
            return
        say(f"group {self.group.name}: measuring all-reduce on {', '.join(fresh)}")
        try:
            self._measure_fresh(fresh)
        except NoProgramError:
            if self.group.required:
                self.problems.append(f"group {self.group.name} cannot be measured: {NO_PROGRAM}")
            else:
                say(f"group {self.group.name}: not measured: {NO_PROGRAM}")

    def _measure_fresh(self, fresh: Sequence[str]) -> None:
        self._measure_alone(fresh)
        usable = [name for name in self.nodes if name not in self.record.faulty]
        for pairs in rounds(usable, fresh):
            self._measure_pairs(pairs)
        self._judge(usable)
        again = self.busy | self.unsettled
        self.record.boots = {name: boot for name, boot in self.record.boots.items() if name not in self.unsettled}
        self.record.boots |= {name: self.nodes[name].boot_id for name in fresh if name not in again}
        self._describe()

    def _measure_alone(self, names: Sequence[str]) -> None:
        if self.group.ranks == 1:
            return
        results = self._measure_all([(name,) for name in names])
        again = [nodes for nodes, result in results.items() if result.is_below(self.group.alone)]
        results |= self._measure_all(again)
        self.record.alone |= {name: result for (name,), result in results.items()}
        slow = {
            name: f"alone: {results[name,]}"
            for (name,) in again
            if results[name,].is_below(self.group.alone) and name not in self.busy
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
        return {names: result for names, result in found.items() if result is not None}

    def _judge(self, usable: Sequence[str]) -> None:
        known = {pair: result for pair, result in self.record.pairs.items() if set(pair) <= set(usable)}
        verdict = judge(known, self.group.pair)
        slow = {}
        for suspect, pair in verdict.suspects.items():
            self._measure_pairs([pair])
            result = self.record.pairs[pair]
            if result.is_below(self.group.pair) and self.busy.isdisjoint(pair):
                partner = pair[0] if suspect == pair[1] else pair[1]
                slow[suspect] = f"with {partner}: {result}"
        self._condemn(slow, usable, self.group.pair)
        if self.group.pair is None:
            return
        self.unsettled |= {name for pair in verdict.undecided for name in pair}
        self.problems += [
            f"{first} and {second}: {known[first, second]} is below the floor of {self.group.pair:g} GB/s, and no "
            f"other pair shows which of the two nodes is slow. {FIX}"
            for first, second in verdict.undecided
        ]

    def _condemn(self, slow: dict[str, str], names: Sequence[str], floor: float | None) -> None:
        """Drain the nodes in `slow`, which maps them to results. Without a floor, only report failed measurements."""
        if not slow:
            return
        shown = "; ".join(f"{name} {text}" for name, text in slow.items())
        if floor is None:
            say(f"group {self.group.name}: not measured: {shown}")
        elif is_common_fault(slow, names):
            self.unsettled |= slow.keys()
            self.problems.append(
                f"group {self.group.name}: {len(slow)} of {len(names)} nodes are below the floor of {floor:g} GB/s, so "
                f"the cause is probably common to all nodes and none is drained: {shown}. Fix: check the network and "
                "the floor in gates.nccl_busbw"
            )
        else:
            for name, text in slow.items():
                reason = f"{text}, floor {floor:g} GB/s"
                drain(name, reason)
                self.record.faulty[name] = reason

    def _describe(self) -> None:
        for title, results, floor in (
            ("alone", self.record.alone, self.group.alone),
            ("pairs", self.record.pairs, self.group.pair),
        ):
            values = [result.busbw for result in results.values() if result.busbw is not None]
            if values:
                wanted = "no floor is recorded" if floor is None else f"floor {floor:g} GB/s"
                say(
                    f"group {self.group.name}, {title}: {min(values):.4g} to {max(values):.4g} GB/s in {len(values)} "
                    f"measurements ({wanted})"
                )


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
        record.keep(valid, (group.alone, group.pair))
        resume(drained() & set(members) - set(record.faulty))
        free = idle()
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
