"""Reasons and states of nodes in Slurm, which the nodes, the head and yard share.

Bundles contain this module, so it runs with Python 3.10 and the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = "TY:"
_CAUSE = re.compile(rf"{_PREFIX}([a-z0-9-]+): ")

ROLL = f"{_PREFIX}roll"
"""Reason of a node that `yard roll` drains. 90-health returns the node to service on its new machine."""
UPDATE = f"{_PREFIX}update"
"""Reason of a node that the bootstrap drains until its jobs have ended (idle.sh)."""

GONE = "gone"
"""Cause of a machine that does not respond, set by trainyard-repair."""
SLURMD = "slurmd"
"""Cause of a machine that responds, but whose slurmd does not, set by trainyard-repair."""
BANDWIDTH = "bandwidth"
"""Cause of a node with slow or wrong all-reduces, set by trainyard-bandwidth."""
EVENT = "event"
"""Cause of a node whose cloud has announced an eviction or a restart. The event ends without a repair."""
QUARANTINE = "quarantine"
"""Cause of a node that `yard heal` has given up. It stays out of service until an operator resumes it."""

_GONE = re.compile(r"(?i)not responding|node unexpectedly rebooted")
"""Reasons that slurmctld sets (slurmctld/node_mgr.c and ping_nodes.c of Slurm 24.11.5, read 2026-11-22)."""
_SUFFIXES = "*~#!%$@^-+"
"""Suffixes of a state (slurm.conf(5), scontrol(1) and sinfo(1) of Slurm 24.11). "*": the node does not respond."""
_IN_SERVICE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "RESERVED"})
"""States in which a node runs jobs or can start them (sinfo(1), "NODE STATE CODES", read 2026-11-22)."""
_EPIDEMIC_SHARE = 0.2


@dataclass(frozen=True)
class Change:
    """A change of the reason why a node is out of service.

    `reason` is empty while the node is in service. `time` is in seconds since 1970.
    """

    time: float
    reason: str


def reason_for(cause: str, text: str) -> str:
    """Return the reason that this project sets in Slurm. `cause`: the id of a health check, or a constant above."""
    return f"{_PREFIX}{cause}: {text}"


def cause_of(reason: str) -> str | None:
    """Return the cause in a reason from `reason_for`, or None."""
    found = _CAUSE.match(reason)
    return found[1] if found else None


def is_own(reason: str) -> bool:
    """Return whether this project set the reason."""
    return reason.startswith(_PREFIX)


def fault(reason: str) -> str | None:
    """Return the fault (the id of a health check, GONE, SLURMD or BANDWIDTH), or None if the reason is not a fault."""
    if _GONE.match(reason):
        return GONE
    cause = cause_of(reason)
    return None if cause in {EVENT, QUARANTINE} else cause


def is_epidemic(faulty: int, nodes: int) -> bool:
    """Return whether so many nodes have the same fault that a common cause is likely."""
    return faulty > max(1, _EPIDEMIC_SHARE * nodes)


def flags(state: str) -> frozenset[str]:
    """Return the parts of a state from scontrol or sinfo. "*" is NOT_RESPONDING."""
    found = frozenset(part.rstrip(_SUFFIXES) for part in state.upper().split("+") if part)
    return found | {"NOT_RESPONDING"} if "*" in state else found


def is_in_service(state: str) -> bool:
    """Return whether Slurm can start jobs on a node in this state, now or after its current jobs."""
    return flags(state) <= _IN_SERVICE


def is_free(state: str) -> bool:
    """Return whether a node in this state, from sinfo, runs no jobs and cannot start any."""
    return not is_in_service(state) and "DRAINING" not in flags(state)
