"""The rules that a stack file must keep beyond its schema. A new one: a function, its line here, its cases in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from components.checks.base import Check, Draft, Finding, Level, Planned
from components.checks.draft import group_fits, head_gpus_idle, hosts_known, machine_known, network_free
from components.checks.facts import prices_are_of_here, unconfirmed_told, versions_agree
from components.checks.planned import (
    limit_can_be_kept,
    platform_fits,
    price_told,
    quota_told,
    shared_disk_fits,
    shared_path_served,
    storage_is_fast,
    user_data_fits,
    within_budget,
)
from components.checks.silence import silence_problems, unless_silenced

__all__ = [
    "DRAFT_CHECKS",
    "PLAN_CHECKS",
    "Check",
    "Draft",
    "Finding",
    "Level",
    "Planned",
    "findings",
    "silence_problems",
    "unless_silenced",
]

DRAFT_CHECKS: tuple[Check[Draft], ...] = (
    Check(id="machine-known", level=Level.ERROR, run=machine_known),
    Check(id="hosts-known", level=Level.ERROR, run=hosts_known),
    Check(id="group-fits", level=Level.ERROR, run=group_fits),
    Check(id="network-free", level=Level.ERROR, run=network_free),
    Check(id="head-gpus-idle", level=Level.WARNING, run=head_gpus_idle),
)

PLAN_CHECKS: tuple[Check[Planned], ...] = (
    Check(id="platform-fits", level=Level.ERROR, run=platform_fits),
    Check(id="user-data-fits", level=Level.ERROR, run=user_data_fits),
    Check(id="disk-size", level=Level.ERROR, run=shared_disk_fits),
    Check(id="shared-path", level=Level.ERROR, run=shared_path_served),
    Check(id="image-versions", level=Level.ERROR, run=versions_agree),
    Check(id="within-budget", level=Level.ERROR, run=within_budget),
    Check(id="limit-can-be-kept", level=Level.WARNING, run=limit_can_be_kept),
    Check(id="storage-throughput", level=Level.WARNING, run=storage_is_fast),
    Check(id="price-region", level=Level.WARNING, run=prices_are_of_here),
    Check(id="price", level=Level.INFO, run=price_told),
    Check(id="quota", level=Level.INFO, run=quota_told),
    Check(id="unconfirmed", level=Level.INFO, run=unconfirmed_told),
)

_Subject = TypeVar("_Subject")


def findings(checks: Iterable[Check[_Subject]], subject: _Subject) -> Iterator[Finding]:
    """Run every check on the subject."""
    for check in checks:
        for problem in check.run(subject):
            yield Finding(check=check.id, level=check.level, problem=problem)
