"""The checks for all platforms, and functions that run checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from components.plan.checks import draft, driver, facts, planned
from components.plan.checks.base import Check, Draft, Finding, Level, Planned, checks_in
from components.stackfile.explain import nearest
from trainyard.errors import Problem

DRAFT_CHECKS: tuple[Check[Draft], ...] = checks_in(draft)
PLAN_CHECKS: tuple[Check[Planned], ...] = checks_in(planned, facts, driver)

_Subject = TypeVar("_Subject")


def run_checks(checks: Iterable[Check[_Subject]], subject: _Subject) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    for check in checks:
        for problem in check.run(subject):
            yield Finding(check=check.id, level=check.level, problem=problem)


def silence_problems(silence: Iterable[str], levels: Mapping[str, Level]) -> Iterator[Problem]:
    """Yield a problem for each ID that cannot be silenced. `levels` contains the level of each check by ID."""
    for index, check in enumerate(silence):
        path = f"cluster.silence.{index}"
        if check not in levels:
            ids = [known for known, level in levels.items() if level is not Level.ERROR]
            similar = nearest(check, ids)
            yield Problem(
                path=path,
                rule=f"no check for this stack has the ID {check}",
                fix=f"write {similar}" if similar else f"use one of {', '.join(ids)}, or remove it",
            )
        elif levels[check] is Level.ERROR:
            yield Problem(
                path=path,
                rule=f"{check} reports errors, but only warnings and notes can be silenced",
                fix="remove it, and fix the errors",
            )
