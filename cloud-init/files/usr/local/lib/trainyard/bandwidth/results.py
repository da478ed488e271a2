"""Selects the pairs of nodes to measure, finds slow nodes in the results, and stores and plots the results."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

Pair = tuple[str, str]
_ROW, _LEFT, _WIDTH = 18, 260, 420
"""Sizes in a plot, in pixels: the height of a row, the left edge of the bars, and the length of the longest bar."""


@dataclass(frozen=True)
class Measured:
    """A measurement. `busbw` is in GB/s, or None if there is no result. In this case, `problem` gives the reason.

    `wrong` means that the all-reduce returned wrong data, so a node is faulty. Any other problem, for example with MPI,
    says nothing about the nodes. `algorithm` contains the algorithm and the protocol that NCCL has chosen, for example
    "RING, SIMPLE", or is empty if they are unknown.
    """

    busbw: float | None
    problem: str = ""
    wrong: bool = False
    algorithm: str = ""

    def is_bad(self, floor: float | None) -> bool:
        """Return whether the data is wrong or the bandwidth is below the floor."""
        return self.wrong or (self.busbw is not None and floor is not None and self.busbw < floor)

    def is_good(self, floor: float | None) -> bool:
        """Return whether there is a result and it is not bad."""
        return self.busbw is not None and not self.is_bad(floor)

    def __str__(self) -> str:
        return self.problem if self.busbw is None else f"{self.busbw:.4g} GB/s"


@dataclass(frozen=True)
class Verdict:
    """What the results say about a group's nodes."""

    suspects: Mapping[str, Pair]
    """Mapping from each slow node to its pair with a good node. This pair is measured again."""
    undecided: tuple[Pair, ...]
    """Slow pairs in which either node may be the slow one."""


def rounds(names: Sequence[str], fresh: Collection[str]) -> list[list[Pair]]:
    """Return rounds of pairs. Pairs in the same round share no node, so they can be measured at the same time.

    With three or more nodes, each fresh node is in at least two pairs. Pairs without a fresh node are omitted. The
    rounds are those of a round-robin tournament (circle method): the first node stays in its place, while the others
    rotate by one place per round.
    """
    players: list[str | None] = [*names]
    if len(players) % 2:
        players.append(None)
    half = len(players) // 2
    number = {0: 0, 1: 1}.get(half, 2 + len(names) % 2)
    found = []
    for _ in range(number):
        facing = zip(players[:half], reversed(players[half:]), strict=True)
        pairs = [(a, b) for a, b in facing if a is not None and b is not None and not {a, b}.isdisjoint(fresh)]
        found.append(pairs)
        players = [players[0], players[-1], *players[1:-1]]
    return [pairs for pairs in found if pairs]


def judge(results: Mapping[Pair, Measured], floor: float | None) -> Verdict:
    """Find the slow nodes. A node in a fast pair is good, so it is not the cause of its slow pairs."""
    slow = [pair for pair, result in results.items() if result.is_bad(floor)]
    good = {name for pair, result in results.items() if result.is_good(floor) for name in pair}
    suspects: dict[str, Pair] = {}
    undecided = []
    for first, second in slow:
        if (first in good) == (second in good):
            undecided.append((first, second))
            continue
        suspects.setdefault(second if first in good else first, (first, second))
    return Verdict(suspects, tuple(pair for pair in undecided if suspects.keys().isdisjoint(pair)))


@dataclass(frozen=True)
class Group:
    """A node group. `alone` and `pair` are the floors in GB/s, or None if no floor is recorded."""

    name: str
    alone: float | None
    pair: float | None
    ranks: int
    """The number of ranks on each node."""
    real_gpus: bool
    sizes: tuple[str, str]
    """The message sizes for a single node and for a pair, in nccl-tests' format, for example 16G."""
    drain_unmeasured: bool
    """Whether a node without a good result is drained if it cannot be measured."""
    env: Mapping[str, str]
    """The fabric's environment variables, for example NCCL settings."""

    def size(self, nodes: int) -> str:
        """Return the message size for `nodes` nodes."""
        return self.sizes[0 if nodes == 1 else 1]


@dataclass(frozen=True)
class Node:
    """A worker. `boot_id` is empty until the worker has reported its status."""

    name: str
    address: str
    group: str
    boot_id: str


@dataclass
class Record:
    """A group's results. `boots` maps each node to its boot ID at the time of the measurement."""

    floors: list[float | None] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    boots: dict[str, str] = field(default_factory=dict)
    alone: dict[str, Measured] = field(default_factory=dict)
    pairs: dict[Pair, Measured] = field(default_factory=dict)
    faulty: dict[str, str] = field(default_factory=dict)
    """Mapping from drained node to drain reason."""

    def keep(self, names: set[str], group: Group) -> None:
        """Keep only the results for `names`, the nodes that have not rebooted since their measurement.

        Discard all results if the group's floors or sizes have changed.
        """
        floors, sizes = [group.alone, group.pair], [*group.sizes]
        kept = names if (floors, sizes) == (self.floors, self.sizes) else set()
        self.floors, self.sizes = floors, sizes
        self.boots = {name: boot for name, boot in self.boots.items() if name in kept}
        self.alone = {name: result for name, result in self.alone.items() if name in kept}
        self.pairs = {pair: result for pair, result in self.pairs.items() if set(pair) <= kept}
        self.faulty = {name: reason for name, reason in self.faulty.items() if name in kept}


def read_groups(path: Path) -> list[Group]:
    """Return the groups to measure, or an empty list if the gate is off."""
    if not path.exists():
        return []
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return [Group(name=name, **row | {"sizes": tuple(row["sizes"])}) for name, row in rows.items()]


def read_nodes(state: Path) -> list[Node]:
    """Return the workers in handover/nodes, with the boot IDs that they have reported."""
    found = []
    for line in (state / "handover" / "nodes").read_text().splitlines():
        name, address, group, *_ = line.split()
        try:
            boot_id = str(json.loads((state / "nodes" / f"{name}.json").read_text()).get("boot_id", ""))
        except (OSError, ValueError):
            boot_id = ""
        found.append(Node(name, address, group, boot_id))
    return found


def load(path: Path) -> dict[str, Record]:
    """Return each group's results, or an empty dictionary if the file is missing or invalid."""
    try:
        stored = json.loads(path.read_text())
        return {name: _record(row) for name, row in stored["groups"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(path: Path, records: Mapping[str, Record]) -> None:
    """Write the results atomically. Bandwidths are in GB/s."""
    rows = {
        name: {
            **asdict(record) | {"alone": {node: asdict(result) for node, result in record.alone.items()}},
            "pairs": [{"nodes": pair, **asdict(result)} for pair, result in record.pairs.items()],
        }
        for name, record in records.items()
    }
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"groups": rows}, indent=1) + "\n")
    new.replace(path)


def _record(row: dict[str, Any]) -> Record:
    alone = {name: Measured(**result) for name, result in row["alone"].items()}
    pairs = {tuple(entry.pop("nodes")): Measured(**entry) for entry in row["pairs"]}
    return Record(**row | {"alone": alone, "pairs": pairs})


def draw(records: Mapping[str, Record]) -> str:
    """Return an SVG with a bar for each measurement in GB/s. Bars below their floor are red."""
    rows = list(_rows(records))
    largest = max((value for _, value, _ in rows), default=0) or 1
    body = []
    for index, (label, value, floor) in enumerate(rows):
        top, scale = 10 + index * _ROW, _WIDTH / largest
        colour = "#c33" if floor is not None and value < floor else "#386"
        body.append(f'<text x="{_LEFT - 6}" y="{top + 12}" text-anchor="end">{escape(label)}</text>')
        body.append(f'<rect x="{_LEFT}" y="{top}" width="{value * scale:.1f}" height="14" fill="{colour}"/>')
        body.append(f'<text x="{_LEFT + value * scale + 4:.1f}" y="{top + 12}">{value:.4g}</text>')
    height = 20 + len(rows) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 80}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n' + "\n".join(body) + "\n</svg>\n"
    )


def _rows(records: Mapping[str, Record]) -> Iterator[tuple[str, float, float | None]]:
    """Yield the label, bandwidth and floor of each measurement. A failed measurement counts as 0."""
    for group, record in records.items():
        for name, result in sorted(record.alone.items()):
            yield f"{group}: {name}", result.busbw or 0, record.floors[0]
        for (first, second), result in sorted(record.pairs.items()):
            yield f"{group}: {first} and {second}", result.busbw or 0, record.floors[1]
