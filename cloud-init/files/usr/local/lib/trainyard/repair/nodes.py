"""Nodes as Slurm and the hand-over describe them. All functions are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from health.slurm import SlurmNode, parse

GONE = "TY:gone: "
"""Prefix of the reason that trainyard-repair sets on a lost node in Slurm."""
NO_SLURMD = "TY:slurmd: the machine answers, but its slurmd does not: check its clock, munge and slurmd (yard doctor)"
"""Reason that trainyard-repair sets. The health daemon resumes the node when its slurmd has registered."""
_OUT = frozenset({"DOWN", "DRAIN", "FAIL", "ERROR", "INVALID_REG", "NOT_RESPONDING", "FUTURE", "UNKNOWN"})
"""Flags of a node on which Slurm starts no job (scontrol(1) of Slurm 24.11, "NODE STATE CODES", read 2026-11-22)."""
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_NAME = re.compile(r"^NodeName=(\S+)")


@dataclass(frozen=True)
class Node:
    """A worker in Slurm. `has_registered`: whether its slurmd has registered since slurmctld last required it."""

    name: str
    slurm: SlurmNode
    has_registered: bool = True

    @property
    def is_usable(self) -> bool:
        """Whether Slurm can start jobs on the node, now or after its current jobs."""
        return self.slurm.flags.isdisjoint(_OUT)

    @property
    def is_busy(self) -> bool:
        return not self.slurm.flags.isdisjoint(_BUSY)

    @property
    def responds(self) -> bool:
        """Whether slurmd responds to slurmctld."""
        return "NOT_RESPONDING" not in self.slurm.flags


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
        name, state = _NAME.match(line), parse(line)
        if name is not None and state is not None:
            yield Node(name[1], state, " BootTime=None" not in line)
