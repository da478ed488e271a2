"""All that a preview says of one stack, and the JSON of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.preview.compare import Difference
from jobs.preview.resources import Resources
from jobs.preview.shape import Description
from jobs.quota.verdict import AccountAnswer

FORMAT = 1
"""Of `--json`; raised when a key changes its meaning."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One stack. `resources` is None where the engine was not asked, since the file is refused already."""

    description: Description
    resources: Resources | None
    difference: Difference | None
    account: AccountAnswer | None = None
    """What the account has of the needed quotas; only with --live."""

    @property
    def stack(self) -> str:
        """The stack's name."""
        return self.description["stack"]

    @property
    def fine(self) -> bool:
        """Whether `pulumi up` may be tried: nothing refuses the file, and the engine would go ahead."""
        return not self.description["problems"] and self.resources is not None and not self.resources.errors


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Every stack that was asked for. `base_problem` says why nothing could be compared with `base`."""

    offline: bool
    base: str | None
    base_problem: str | None
    reports: tuple[Report, ...]

    @property
    def fine(self) -> bool:
        """Whether every stack is."""
        return all(report.fine for report in self.reports)


def as_json(preview: Preview) -> dict[str, Any]:
    """Return the document that docs/preview.md describes."""
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
    return {
        **described,
        "fine": report.fine,
        "resources": _resources(report.resources) if report.resources else None,
        "difference": report.difference,
        "account": asdict(report.account) if report.account else None,
    }


def _resources(resources: Resources) -> dict[str, Any]:
    return {
        "by_operation": resources.by_operation,
        "by_type": resources.by_type,
        "changes": [asdict(step) for step in resources.changes],
        "errors": list(resources.errors),
        "warnings": list(resources.warnings),
    }


def host_ranges(hosts: Sequence[str]) -> list[str]:
    """Return names with runs of indices joined: opt-gpu-0, opt-gpu-1 as opt-gpu-[0-1]."""
    runs: list[tuple[str, int, int]] = []
    for name in hosts:
        stem, _, index = name.rpartition("-")
        if not index.isdecimal():
            runs.append((name, -1, -1))
        elif runs and runs[-1][0] == stem and runs[-1][2] == int(index) - 1:
            runs[-1] = (stem, runs[-1][1], int(index))
        else:
            runs.append((stem, int(index), int(index)))
    return [_run(*run) for run in runs]


def _run(stem: str, first: int, last: int) -> str:
    if first < 0:
        return stem
    return f"{stem}-{first}" if first == last else f"{stem}-[{first}-{last}]"
