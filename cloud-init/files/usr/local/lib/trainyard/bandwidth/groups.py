"""Parameters of the gate, and the results on the head's disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bandwidth.pairs import Measured, Pair


@dataclass(frozen=True)
class Group:
    """A node group. `alone` and `pair` are minimum bus bandwidths in GB/s, or None if no floor is recorded."""

    name: str
    alone: float | None
    pair: float | None
    ranks: int
    """Ranks on each node."""
    real_gpus: bool
    sizes: tuple[str, str]
    """Message sizes of a node alone and of a pair, in the format of nccl-tests, for example 16G."""
    drain_unmeasured: bool
    """Whether a node that cannot be measured is drained. Otherwise, it stays in service."""
    env: Mapping[str, str]
    """Environment variables of the fabric, for example settings of NCCL."""

    def size(self, nodes: int) -> str:
        """Return the message size for a measurement of this number of nodes."""
        return self.sizes[0 if nodes == 1 else 1]

    @property
    def floors(self) -> list[float | None]:
        """The floors of a node alone and of a pair."""
        return [self.alone, self.pair]


@dataclass(frozen=True)
class Node:
    """A worker. `boot_id` is empty until the node's status has arrived."""

    name: str
    address: str
    group: str
    boot_id: str


@dataclass
class Record:
    """The results of a group. `boots`: the boot in which each node was measured."""

    floors: list[float | None] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    boots: dict[str, str] = field(default_factory=dict)
    alone: dict[str, Measured] = field(default_factory=dict)
    pairs: dict[Pair, Measured] = field(default_factory=dict)
    faulty: dict[str, str] = field(default_factory=dict)
    """Drain reasons by node."""

    def keep(self, names: set[str], group: Group) -> None:
        """Discard the results of nodes that are not in `names`. If floors or sizes have changed, discard all results.

        `names`: the nodes that have not rebooted since their measurement.
        """
        kept = names if (group.floors, [*group.sizes]) == (self.floors, self.sizes) else set()
        self.floors, self.sizes = group.floors, [*group.sizes]
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
    """Return the workers in handover/nodes, with the boot ids that they have reported."""
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
    """Return the results by group, or an empty dictionary if the file is missing or invalid."""
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
    return Record(
        floors=row["floors"],
        sizes=row["sizes"],
        boots=row["boots"],
        alone={name: Measured(**result) for name, result in row["alone"].items()},
        pairs={
            (entry["nodes"][0], entry["nodes"][1]): Measured(entry["busbw"], entry["problem"], entry["wrong"])
            for entry in row["pairs"]
        },
        faulty=row["faulty"],
    )
