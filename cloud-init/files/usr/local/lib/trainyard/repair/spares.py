"""Spares: nodes that a Slurm reservation holds back until another node of their group is lost or drained. Pure.

Slurm neither moves nor refills a reservation with named nodes. The nodes of an active reservation can be changed. With
IGNORE_JOBS, a reservation can contain busy nodes, which become spares when their job ends (update_resv and _job_overlap
in slurmctld/reservation.c of Slurm 22.05.8, 23.11.4 and 24.11.5, and scontrol(1), "RESERVATIONS"; read 2026-11-22). In
contrast, in a reservation with NodeCnt and REPLACE_DOWN, Slurm replaces lost spares with nodes that run jobs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from repair.nodes import Group, Node

PREFIX = "spares-"
"""The reservation of a group is named after the group."""
_RESERVATION = re.compile(rf"^ReservationName={PREFIX}(\S+) .* Nodes=(\S+)")


def choose(group: Group, nodes: Mapping[str, Node], held: Collection[str]) -> tuple[str, ...]:
    """Return the nodes to hold back, sorted by name.

    Each unusable node takes the place of a spare, so that the number of nodes for jobs stays the same. Present spares
    are kept. Idle nodes are preferred as new spares.
    """
    members = [nodes[name] for name in group.nodes if name in nodes]
    usable = [node for node in members if node.is_usable]
    wanted = max(0, group.spares - (len(group.nodes) - len(usable)))
    ordered = sorted(reversed(usable), key=lambda node: (node.name not in held, node.is_busy))
    return tuple(sorted(node.name for node in ordered[:wanted]))


def parse_held(text: str) -> dict[str, str]:
    """Return the node list of each group's reservation, from the output of `scontrol -o show reservation`."""
    return {found[1]: found[2] for line in text.splitlines() if (found := _RESERVATION.match(line))}


def commands(group: str, wanted: Sequence[str], held: Collection[str] | None) -> Iterator[list[str]]:
    """Yield the arguments of scontrol that change a group's reservation. `held` is None if there is no reservation.

    Slurm ends a reservation with duration=UNLIMITED after a year. The next run of the service then creates a new one.
    """
    name, nodes = f"reservationname={PREFIX}{group}", f"nodes={','.join(wanted)}"
    if held is None and wanted:
        yield ["create", "reservation", name, nodes, "starttime=now", "duration=UNLIMITED", "users=root",
               "flags=IGNORE_JOBS"]  # fmt: skip
    elif held is not None and not wanted:
        yield ["delete", name]
    elif held is not None and set(held) != set(wanted):
        yield ["update", name, nodes]
