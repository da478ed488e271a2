"""Verdicts: confirmed faults of a node.

They are stored on disk, so they survive a restart of the daemon and a reboot, and remain when Slurm clears DRAIN.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from health.node import FAIL, PASS, SEVERITIES, Check, Outcome
from trainyard.faults import reason_for

_HISTORY = 50
"""The number of history entries that are kept. An entry records when a verdict began or ended."""
_STORED = ("boot_id", "verdicts", "history", "baseline", "kmsg", "xids")


@dataclass(frozen=True)
class Verdict:
    """A confirmed fault that has not ended. `since` is a time in seconds since 1970."""

    check: str
    severity: str
    text: str
    since: float
    boot_id: str

    @property
    def reason(self) -> str:
        return reason_for(self.check, self.text)


@dataclass
class Ledger:
    """All verdicts and the latest results, each stored under the check's ID."""

    boot_id: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    baseline: dict[str, Any] = field(default_factory=dict)
    kmsg: int = -1
    """The number of the last record that was read from this boot's kernel log."""
    xids: dict[str, dict[str, int]] = field(default_factory=dict)
    """Mapping from a GPU's PCI address and an Xid to the number of messages in the records that were read. It is stored
    together with `kmsg`, so that a new daemon counts each record once."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)

    def record(self, check: Check, outcome: Outcome, now: float) -> bool:
        """Add a result, and return whether a verdict has begun or ended.

        An UNKNOWN result resets the counts of failures and passes, and leaves the verdicts unchanged.
        """
        self.outcomes[check.id] = outcome
        self.fails[check.id] = self.fails.get(check.id, 0) + 1 if outcome.state == FAIL else 0
        self.passes[check.id] = self.passes.get(check.id, 0) + 1 if outcome.state == PASS else 0
        verdict = self.verdicts.get(check.id)
        if verdict is None and self.fails[check.id] >= check.fails:
            self.verdicts[check.id] = Verdict(check.id, check.severity, outcome.text, now, self.boot_id)
            self._note("begin", self.verdicts[check.id], now)
            return True
        may_end = verdict is not None and (check.undrain == "passes" or verdict.boot_id != self.boot_id)
        if may_end and self.passes[check.id] >= check.passes:
            self._end(check.id, now)
            return True
        return False

    def count_xid(self, gpu: str, xid: str) -> None:
        counts = self.xids.setdefault(gpu, {})
        counts[xid] = counts.get(xid, 0) + 1

    def clear(self, check: str, now: float) -> None:
        """Clear a check's verdict at an operator's request."""
        if check in self.verdicts:
            self._end(check, now)
        self.fails[check] = 0

    def retain(self, checks: Mapping[str, Check], now: float) -> None:
        """End the verdicts of checks that this node no longer has, for example after a new bundle."""
        for check in [name for name in self.verdicts if name not in checks]:
            self._end(check, now)

    @property
    def worst(self) -> Verdict | None:
        """The verdict that gives the drain reason: the oldest of the most severe verdicts, or None for notes only."""
        draining = [verdict for verdict in self.verdicts.values() if verdict.severity != "note"]
        return min(draining, key=lambda verdict: (SEVERITIES.index(verdict.severity), verdict.since), default=None)

    def is_suspect(self, check: str) -> bool:
        """Return whether the check must run again soon because its next result can begin or end a verdict."""
        series = self.passes if check in self.verdicts else self.fails
        return series.get(check, 0) > 0

    def _end(self, check: str, now: float) -> None:
        self._note("end", self.verdicts.pop(check), now)

    def _note(self, event: str, verdict: Verdict, now: float) -> None:
        self.history = [*self.history, {"time": now, "event": event, "reason": verdict.reason}][-_HISTORY:]


def load(path: Path, boot_id: str) -> Ledger:
    """Return the stored ledger, or an empty one if it cannot be read."""
    try:
        stored = json.loads(path.read_text())
        verdicts = {name: Verdict(**row) for name, row in stored["verdicts"].items()}
        kmsg, xids = (stored["kmsg"], stored.get("xids", {})) if stored["boot_id"] == boot_id else (-1, {})
        return Ledger(boot_id, verdicts, stored["history"], stored["baseline"], kmsg, xids)
    except (OSError, ValueError, KeyError, TypeError):
        return Ledger(boot_id=boot_id)


def save(path: Path, ledger: Ledger) -> bool:
    """Store the ledger. Return False if this fails, for example because the disk is full or read-only."""
    values = asdict(ledger)
    return write(path, json.dumps({name: values[name] for name in _STORED}))


def write(path: Path, text: str, modified: float | None = None) -> bool:
    """Replace a file atomically, and set its modification time if `modified` is given. Return False if this fails."""
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.write_text(f"{text}\n")
        if modified is not None:
            os.utime(new, (modified, modified))
        new.replace(path)
    except OSError:
        return False
    return True
