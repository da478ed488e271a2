"""Facts about a node: its state in Slurm, the changes that the head recorded, and earlier repairs. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from yard.roll.nodes import States, is_in_service

GONE = "gone"
"""The kind of fault for a machine that does not respond."""
_CHECK = re.compile(r"TY:([a-z0-9-]+): ")
_SLURM_GONE = re.compile(r"(?i)not responding|node unexpectedly rebooted")
"""Reasons that slurmctld sets (slurmctld/node_mgr.c and ping_nodes.c of Slurm 24.11.5, read 2026-11-22)."""
_NO_FAULT = frozenset({"event", "quarantine"})
"""Reasons set by this project that are not faults. A cloud event ends without a repair. A quarantine ends only when an
operator resumes the node."""


@dataclass(frozen=True)
class Change:
    """A change of a node's reason, which is empty while the node is in service. `time` is in seconds since 1970."""

    time: float
    reason: str


@dataclass(frozen=True)
class Action:
    """A repair that `yard heal` began."""

    time: float
    node: str
    step: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node. `changes` and `actions` are sorted by time."""

    name: str
    group: str
    state: str
    reason: str
    set_by: str = ""
    """The user who set the reason and the time, or empty if Slurm records no user."""
    changes: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()

    @property
    def is_in_service(self) -> bool:
        return is_in_service(self.state)

    @property
    def faults(self) -> tuple[Change, ...]:
        """The changes in which a fault took the node out of service, including faults that have ended."""
        before = ("", *(change.reason for change in self.changes))
        return tuple(
            change
            for change, earlier in zip(self.changes, before, strict=False)
            if fault(change.reason) and not fault(earlier)
        )

    @property
    def attempts(self) -> tuple[Action, ...]:
        """The repairs of the current fault."""
        since = self.faults[-1].time if self.faults else 0.0
        return tuple(action for action in self.actions if action.time >= since)


def fault(reason: str) -> str | None:
    """Return the kind of fault (the id of a health check, or GONE), or None if the reason is not a fault."""
    if _SLURM_GONE.match(reason):
        return GONE
    found = _CHECK.match(reason)
    return found[1] if found and found[1] not in _NO_FAULT else None


def cases(
    groups: Mapping[str, str],
    states: States,
    history: Any,
    actions: Iterable[Action],
    authors: Mapping[str, str] = MappingProxyType({}),
) -> list[Case]:
    """Return a case for each worker.

    `groups`: the group by node. `history`: the content of repair.json. `authors`: who set the state, by node.
    """
    done = sorted(actions, key=lambda action: action.time)
    return [
        Case(
            name=name,
            group=group,
            state=states.get(name, ("unknown", ""))[0],
            reason=states.get(name, ("unknown", ""))[1],
            set_by=authors.get(name, ""),
            changes=tuple(Change(**row) for row in history.get("history", {}).get(name, ())),
            actions=tuple(action for action in done if action.node == name),
        )
        for name, group in groups.items()
    ]


def parse_authors(text: str) -> dict[str, str]:
    """Parse lines `node|user|time` from sinfo: return the user and the time by node."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 2)  # noqa: PLR2004  (two separators)
    return {name: f"{user} ({when})" for name, user, when in rows if user not in {"", "Unknown", "slurm"}}


def parse_actions(text: str) -> list[Action]:
    """Parse the record of repairs, which has one JSON object per line."""
    return [Action(**json.loads(line)) for line in text.splitlines() if line.startswith("{")]
