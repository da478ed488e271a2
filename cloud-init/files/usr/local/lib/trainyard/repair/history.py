"""Times at which each node left service and returned. All functions are pure, except for `load` and `save`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from repair.nodes import Node

KEPT = 50
"""Number of changes that are kept for each node."""


@dataclass(frozen=True)
class Change:
    """A change of the reason why a node is out of service.

    `reason` is empty for a node in service. `time` is in seconds since 1970.
    """

    time: float
    reason: str


History = Mapping[str, tuple[Change, ...]]
"""Changes by node name, oldest first."""


def record(history: History, nodes: Iterable[Node], now: float) -> dict[str, tuple[Change, ...]]:
    """Return the history with a new entry for each node whose reason differs from its last entry."""
    found = dict(history)
    for node in nodes:
        reason = "" if node.is_usable else node.slurm.reason or "not responding"
        changes = found.get(node.name, ())
        if reason != (changes[-1].reason if changes else ""):
            found[node.name] = (*changes, Change(now, reason))[-KEPT:]
    return found


def load(path: Path) -> dict[str, tuple[Change, ...]]:
    """Return the history on disk, or an empty history if it cannot be read."""
    try:
        rows = json.loads(path.read_text())["history"]
        return {name: tuple(Change(**change) for change in changes) for name, changes in rows.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(path: Path, history: History) -> None:
    """Write the history atomically. All users may read it, because they can read the reasons in Slurm."""
    rows = {name: [asdict(change) for change in changes] for name, changes in history.items()}
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps({"history": rows}) + "\n")
    new.chmod(0o644)
    new.replace(path)
