"""Checks for all platforms. A new check needs an entry here and test cases in tests/components/plan/test_checks.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from components.plan.checks.base import Check, Draft, Finding, Level, Planned
from components.plan.checks.draft import group_fits, head_gpus_idle, hosts_known, machine_known, network_free
from components.plan.checks.driver import driver_available, driver_needs_gpus
from components.plan.checks.facts import image_versions, prices_match_region, unverified_facts
from components.plan.checks.planned import (
    disk_size,
    limit_is_effective,
    report_price,
    report_quota,
    shared_path,
    ssh_network_is_real,
    storage_throughput,
    user_data_fits,
    within_budget,
)
from components.stackfile.explain import nearest
from yard.contract.errors import Problem

DRAFT_CHECKS: tuple[Check[Draft], ...] = (machine_known, hosts_known, group_fits, network_free, head_gpus_idle)
PLAN_CHECKS: tuple[Check[Planned], ...] = (
    user_data_fits,
    disk_size,
    shared_path,
    ssh_network_is_real,
    image_versions,
    driver_available,
    driver_needs_gpus,
    within_budget,
    limit_is_effective,
    storage_throughput,
    prices_match_region,
    report_price,
    report_quota,
    unverified_facts,
)

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
