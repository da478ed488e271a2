"""The results of a preview, and their JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from yard.preview.compare import Difference
from yard.preview.resources import Resources
from yard.preview.shape import Description
from yard.quota.verdict import AccountAnswer

FORMAT = 1
"""Version of the JSON document. Increase it if the meaning of a key changes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of one stack. `resources` is None if the stack file was rejected, and `account` is None without
    --live.
    """

    description: Description
    resources: Resources | None
    difference: Difference | None
    account: AccountAnswer | None = None

    @property
    def stack(self) -> str:
        return self.description["stack"]

    @property
    def fine(self) -> bool:
        """Whether the stack file is valid and the engine reported no errors."""
        return not self.description["problems"] and self.resources is not None and not self.resources.errors


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The results of all stacks. `base_problem` is the reason why the stacks were not compared with `base`, or None."""

    offline: bool
    base: str | None
    base_problem: str | None
    reports: tuple[Report, ...]

    @property
    def fine(self) -> bool:
        return all(report.fine for report in self.reports)


def as_json(preview: Preview) -> dict[str, Any]:
    """Return the document described in docs/preview.md."""
    return {
        "format": FORMAT,
        "offline": preview.offline,
        "base": preview.base,
        "base_problem": preview.base_problem,
        "fine": preview.fine,
        "stacks": [_stack(report) for report in preview.reports],
    }


def _stack(report: Report) -> dict[str, Any]:
    described = {key: value for key, value in report.description.items() if key != "files"}
    resources = report.resources and {
        "by_operation": report.resources.by_operation,
        "by_type": report.resources.by_type,
        "changes": [asdict(step) for step in report.resources.changes],
        "errors": report.resources.errors,
        "warnings": report.resources.warnings,
    }
    account = report.account and asdict(report.account)
    return {
        **described,
        "fine": report.fine,
        "resources": resources,
        "difference": report.difference,
        "account": account,
    }


def host_ranges(hosts: Sequence[str]) -> list[str]:
    """Merge names with consecutive indices: opt-gpu-0 and opt-gpu-1 become opt-gpu-[0-1]."""
    runs: list[tuple[str, int, int]] = []
    for name in hosts:
        stem, _, index = name.rpartition("-")
        if not index.isdecimal():
            runs.append((name, -1, -1))
        elif runs and runs[-1][0] == stem and runs[-1][2] == int(index) - 1:
            runs[-1] = (stem, runs[-1][1], int(index))
        else:
            runs.append((stem, int(index), int(index)))
    return [
        stem if first < 0 else f"{stem}-{first}" if first == last else f"{stem}-[{first}-{last}]"
        for stem, first, last in runs
    ]
