"""Verdicts on a node. Only `load` and `save` read or write files.

Verdicts are stored on disk, so they remain after a restart of the daemon, after a reboot, and when Slurm clears DRAIN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from health.node import FAIL, PASS, SEVERITIES, Check, Outcome
from trainyard.faults import reason_for

_HISTORY = 50
"""Number of entries in the history, which records when verdicts begin and end."""


@dataclass(frozen=True)
class Verdict:
    """A confirmed fault that has not ended. `since` is in seconds since 1970."""

    check: str
    severity: str
    text: str
    since: float
    boot_id: str

    @property
    def reason(self) -> str:
        """The reason in Slurm."""
        return reason_for(self.check, self.text)

    @property
    def drains(self) -> bool:
        return self.severity != "note"


@dataclass
class Ledger:
    """Verdicts by check, and the last results."""

    boot_id: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    baseline: dict[str, Any] = field(default_factory=dict)
    kmsg: int = -1
    """Number of the last record that was read from this boot's kernel log."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)

    def record(self, check: Check, outcome: Outcome, now: float) -> bool:
        """Add a result. Return whether a verdict has begun or ended.

        An unknown result resets the counts of failures and passes. It neither begins nor ends a verdict.
        """
        self.outcomes[check.id] = outcome
        self.fails[check.id] = self.fails.get(check.id, 0) + 1 if outcome.state == FAIL else 0
        self.passes[check.id] = self.passes.get(check.id, 0) + 1 if outcome.state == PASS else 0
        verdict = self.verdicts.get(check.id)
        if verdict is None and self.fails[check.id] >= check.fails:
            self._begin(Verdict(check.id, check.severity, outcome.text, now, self.boot_id), now)
            return True
        if verdict is not None and self.passes[check.id] >= check.passes and self._may_end(check, verdict):
            self._end(check.id, now)
            return True
        return False

    def clear(self, check: str, now: float) -> None:
        """End a verdict at an operator's request, although its check has not passed."""
        if check in self.verdicts:
            self._end(check, now)
        self.fails[check] = 0

    def retain(self, checks: Mapping[str, Check], now: float) -> None:
        """End the verdicts of checks that no longer exist on this node, for example after a new bundle."""
        for check in [name for name in self.verdicts if name not in checks]:
            self._end(check, now)

    @property
    def worst(self) -> Verdict | None:
        """The verdict that determines the node's drain reason: the oldest of the most severe verdicts."""
        draining = [verdict for verdict in self.verdicts.values() if verdict.drains]
        return min(draining, key=lambda verdict: (SEVERITIES.index(verdict.severity), verdict.since), default=None)

    def is_suspect(self, check: str) -> bool:
        """Return whether the check must run again soon, because its next result can begin or end a verdict."""
        series = self.passes if check in self.verdicts else self.fails
        return series.get(check, 0) > 0

    def _may_end(self, check: Check, verdict: Verdict) -> bool:
        return check.undrain == "passes" or verdict.boot_id != self.boot_id

    def _begin(self, verdict: Verdict, now: float) -> None:
        self.verdicts[verdict.check] = verdict
        self._note("begin", verdict, now)

    def _end(self, check: str, now: float) -> None:
        self._note("end", self.verdicts.pop(check), now)

    def _note(self, event: str, verdict: Verdict, now: float) -> None:
        self.history = [*self.history, {"time": now, "event": event, "reason": verdict.reason}][-_HISTORY:]


def load(path: Path, boot_id: str) -> Ledger:
    """Return the ledger on disk, or an empty ledger if it cannot be read."""
    try:
        stored = json.loads(path.read_text())
        verdicts = {name: Verdict(**row) for name, row in stored["verdicts"].items()}
        same_boot = stored["boot_id"] == boot_id
        return Ledger(
            boot_id=boot_id,
            verdicts=verdicts,
            history=stored["history"],
            baseline=stored["baseline"],
            kmsg=stored["kmsg"] if same_boot else -1,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Ledger(boot_id=boot_id)


def save(path: Path, ledger: Ledger) -> bool:
    """Write the ledger. Return False if the disk cannot be written, for example if it is full or read-only."""
    stored = {
        "boot_id": ledger.boot_id,
        "verdicts": {name: asdict(verdict) for name, verdict in ledger.verdicts.items()},
        "history": ledger.history,
        "baseline": ledger.baseline,
        "kmsg": ledger.kmsg,
    }
    return write(path, json.dumps(stored))


def write(path: Path, text: str) -> bool:
    """Replace a file atomically. Return False if it cannot be written."""
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.write_text(f"{text}\n")
        new.replace(path)
    except OSError:
        return False
    return True
