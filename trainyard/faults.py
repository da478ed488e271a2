"""Reasons and states of Slurm nodes. The nodes, the head and yard share these definitions.

This module is part of the bundle, so it is limited to Python 3.10 and the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = "TY:"
_CAUSE = re.compile(rf"{_PREFIX}([a-z0-9-]+): ")

_OPERATOR = re.compile(r"([\w.-]+@[\w.-]+): ")

ROLL = f"{_PREFIX}roll"
"""`yard roll` drains a node for this reason. On the new machine, the stage 90-health returns the node to service."""
UPDATE = f"{_PREFIX}update"
"""The bootstrap drains a node for this reason until its jobs have ended and the node can be changed (idle.sh)."""

GONE = "gone"
"""Cause: the machine does not respond (trainyard-repair)."""
SLURMD = "slurmd"
"""Cause: the machine responds, but its slurmd does not (trainyard-repair)."""
BANDWIDTH = "bandwidth"
"""Cause: the node's all-reduces are slow or wrong (trainyard-bandwidth)."""
EVENT = "event"
"""Cause: the cloud has announced an eviction or a restart, so no repair is needed."""
POWER = "power"
"""Cause: the machine of an elastic node cannot be started now, for example because the cloud has no capacity. No repair
is needed, because the head tries again (repair/power.py)."""
QUARANTINE = "quarantine"
"""Cause: `yard heal` has given up on the node, which stays out of service until an operator resumes it."""
HISTORY = "repair/repair.json"
"""The file below /var/lib/trainyard on the head in which trainyard-repair stores when nodes left service. The service
may write only in the file's folder (trainyard-repair.service)."""

ON_TIMES = "repair/machines"
"""The file below /var/lib/trainyard on the head in which trainyard-repair stores when machines started and stopped.
Each line contains the seconds since 1970, the node's name or HEAD, and `on` or `off`."""
HEAD = "head"
CLOSED = "repair/closed"
"""The file below /var/lib/trainyard on the head with the Slurm partitions that trainyard-repair has set down, as a JSON
object: partition -> [reason, the state that the partition had before]."""
SLEEP_REQUEST = "repair/sleep"
"""The file below /var/lib/trainyard on the head in which `yard sleep` requests that the cluster stops. A JSON object:
`at` is the time in seconds since 1970 after which the cluster may stop. If it cannot stop, `refused` states the reason
instead."""
SLEEPING = "the cluster is stopping"
"""The notice, and the reason for closed partitions, before the cluster stops (repair/sleep.py)."""
NOTICES = "repair/notices"
"""The file below /var/lib/trainyard on the head with sentences, one in a line, that yard shows to every user."""

_GONE = re.compile(r"(?i)not responding|node unexpectedly rebooted|resumetimeout reached")
"""Reasons of slurmctld (slurmctld/node_mgr.c, ping_nodes.c and power_save.c of Slurm 24.11.5, read 2026-11-26)."""
_SUFFIXES = "*~#!%$@^-+"
"""Suffixes of states (slurm.conf(5), scontrol(1) and sinfo(1) of Slurm 24.11). "*" means no response."""
_POWER_STATES = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"})
_IN_SERVICE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "RESERVED"}) | _POWER_STATES
"""States of nodes that run jobs or can start them (sinfo(1), "NODE STATE CODES", read 2026-11-22). For a job, Slurm
starts the machine of an elastic node that is powered down."""
_EPIDEMIC_SHARE = 0.2


@dataclass(frozen=True)
class Change:
    """A change of the reason why a node is out of service. `reason` is empty if the node has returned to service."""

    time: float
    """Seconds since 1970."""
    reason: str


def reason_for(cause: str, text: str) -> str:
    """Return a reason for Slurm. `cause` is the ID of a health check or a constant above."""
    return f"{_PREFIX}{cause}: {text}"


def cause_of(reason: str) -> str | None:
    """Return the cause in a reason from `reason_for`, or None for another reason."""
    found = _CAUSE.match(reason)
    return found[1] if found else None


def operator_reason(user: str, computer: str, text: str) -> str:
    """Return the reason for a node that a person drains with `yard drain`."""
    name, host = (re.sub(r"[^\w.-]", "-", part) for part in (user, computer))
    return f"{name}@{host}: {text}"


def operator_in(reason: str) -> str | None:
    """Return the person (user@computer) in a reason from `operator_reason`, or None for another reason."""
    found = _OPERATOR.match(reason)
    return found[1] if found else None


def is_own(reason: str) -> bool:
    """Return whether this project set the reason."""
    return reason.startswith(_PREFIX)


def fault(reason: str) -> str | None:
    """Return the fault in a reason (a health check's ID, GONE, SLURMD or BANDWIDTH), or None if there is none."""
    if _GONE.match(reason):
        return GONE
    cause = cause_of(reason)
    return None if cause in {EVENT, POWER, QUARANTINE} else cause


def is_epidemic(faulty: int, nodes: int) -> bool:
    """Return whether a fault on `faulty` of `nodes` nodes probably has a common cause."""
    return faulty > max(1, _EPIDEMIC_SHARE * nodes)


def flags(state: str) -> frozenset[str]:
    """Return the parts of a state from scontrol or sinfo. "*" means NOT_RESPONDING."""
    found = frozenset(part.rstrip(_SUFFIXES) for part in state.upper().split("+") if part)
    return found | {"NOT_RESPONDING"} if "*" in state else found


def is_in_service(state: str) -> bool:
    """Return whether Slurm can start jobs on a node in this state, now or after its current jobs."""
    found = flags(state)
    # A powered-down node does not respond, and does not have to.
    return (found - {"NOT_RESPONDING"} if is_off(state) else found) <= _IN_SERVICE


def is_off(state: str) -> bool:
    """Return whether the machine of a node in this state is off, stopping or starting, as Slurm has requested."""
    marks = {"~", "#", "%"}
    return not flags(state).isdisjoint(_POWER_STATES - {"POWER_DOWN"}) or not marks.isdisjoint(state)


def is_free(state: str) -> bool:
    """Return whether a node in this sinfo state runs no jobs and cannot start any."""
    return not is_in_service(state) and "DRAINING" not in flags(state)
