"""Nodes as Slurm and the hand-over describe them. All functions are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from health.slurm import SlurmNode, parse

GONE = "TY:gone: "
"""Prefix of the reason that trainyard-repair sets on a lost node in Slurm."""
_OUT = frozenset({"DOWN", "DRAIN", "FAIL", "ERROR", "INVALID_REG", "NOT_RESPONDING", "FUTURE", "UNKNOWN"})
"""Flags of a node on which Slurm starts no job (scontrol(1) of Slurm 24.11, "NODE STATE CODES", read 2026-11-22)."""
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_NAME = re.compile(r"^NodeName=(\S+)")
_BOOT = re.compile(r" BootTime=(\S+)")


@dataclass(frozen=True)
class Node:
    """A worker in Slurm. `boot` is the time of its last boot in seconds since 1970, or 0 if it is unknown."""

    name: str
    slurm: SlurmNode
    boot: float = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether Slurm can start jobs on the node, now or after its current jobs."""
        return self.slurm.flags.isdisjoint(_OUT)

    @property
    def is_busy(self) -> bool:
        return not self.slurm.flags.isdisjoint(_BUSY)

    @property
    def is_lost(self) -> bool:
        """Whether the repair service has set the node down because it did not answer."""
        return "DOWN" in self.slurm.flags and self.slurm.reason.startswith(GONE)


@dataclass(frozen=True)
class Group:
    """A node group. `nodes` contains the addresses of the workers by name."""

    name: str
    spares: int
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class Site:
    """repair.json from the hand-over. `silent_seconds`: time without an answer after which a node is lost."""

    silent_seconds: float
    groups: tuple[Group, ...]

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each worker by name."""
        return {name: address for group in self.groups for name, address in group.nodes.items()}


def read_site(text: str) -> Site:
    """Parse repair.json."""
    found = json.loads(text)
    groups = tuple(Group(name, row["spares"], row["nodes"]) for name, row in found["groups"].items())
    return Site(found["silent_seconds"], groups)


def parse_nodes(text: str) -> Iterator[Node]:
    """Yield the nodes in the output of `scontrol -o show node`."""
    for line in text.splitlines():
        name, state, boot = _NAME.match(line), parse(line), _BOOT.search(line)
        if name is not None and state is not None:
            yield Node(name[1], state, _seconds(boot[1]) if boot else 0.0)


def _seconds(text: str) -> float:
    """Return a local time from Slurm in seconds since 1970, or 0 for "None" and "Unknown"."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
