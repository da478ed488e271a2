"""Previews several stacks."""

from __future__ import annotations

from collections.abc import Sequence

from components.platforms.local.computer import THIS_COMPUTER
from trainyard.errors import ClusterError
from yard.preview.base import commit_of, describe_at
from yard.preview.compare import compare
from yard.preview.describe import describe
from yard.preview.engine import preview_all
from yard.preview.report import Preview, Report
from yard.preview.shape import Description
from yard.quota.account import read_account
from yard.quota.verdict import AccountAnswer
from yard.show import warn
from yard.stack.workspace import platform_section


def preview(stacks: Sequence[str], *, live: bool, against: str | None) -> Preview:
    """Return a preview of the stacks. Raises UnknownRevision if git cannot resolve `against`."""
    base = commit_of(against) if against is not None else None
    described = {stack: describe(stack, computer=THIS_COMPUTER) for stack in stacks}
    before: dict[str, Description] | None = None
    base_problem = None
    if base:
        try:
            before = describe_at(base)
        except ClusterError as error:
            base_problem = str(error)
    # The engine would only report the problems of an invalid file again.
    valid = [stack for stack, description in described.items() if not description["problems"]]
    resources = preview_all(valid, live=live, tell=warn) if valid else {}
    reports = tuple(
        Report(
            description=description,
            resources=resources.get(stack),
            difference=compare(before.get(stack), description) if before is not None else None,
            account=_account(stack, description) if live and stack in resources else None,
        )
        for stack, description in described.items()
    )
    return Preview(offline=not live, base=base, base_problem=base_problem, reports=reports)


def _account(stack: str, description: Description) -> AccountAnswer:
    hosts = description["plan"]["hosts"] if description["plan"] else []
    machines = list(dict.fromkeys(host["machine"] for host in hosts))
    return read_account(platform_section(stack), description["quota"], machines)
