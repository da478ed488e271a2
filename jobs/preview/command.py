"""Joins a preview's parts: which stacks, what each is, what the engine would do, what differs, what the account has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from components.errors import ClusterError
from jobs.preview.base import commit_of, describe_at
from jobs.preview.compare import compare
from jobs.preview.describe import CHECKOUT, describe
from jobs.preview.engine import preview_all
from jobs.preview.report import Preview, Report
from jobs.preview.shape import Description
from jobs.quota.ask import ask_account
from jobs.quota.verdict import AccountAnswer


def preview(stacks: Sequence[str], *, live: bool, against: str | None) -> Preview:
    """Return the preview of the stacks. Raises UnknownRevision for a base that git does not know."""
    base = commit_of(against) if against is not None else None
    described = {stack: describe(stack) for stack in stacks}
    before: dict[str, Description] | None = None
    base_problem = None
    if base:
        try:
            before = describe_at(base)
        except ClusterError as error:
            base_problem = str(error)
    # A refused file is told in full already; the engine would only say it again.
    sound = [stack for stack, description in described.items() if not description["problems"]]
    resources = preview_all(sound, live=live, tell=_tell) if sound else {}
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
    return ask_account(_platform(CHECKOUT / "stacks" / f"Pulumi.{stack}.yaml"), description["quota"], machines)


def _platform(file: Path) -> dict[str, Any]:
    """Return the `platform:` section of a stack file that has been read without a problem before."""
    section: dict[str, Any] = yaml.safe_load(file.read_text())["config"]["trainyard:cluster"]["platform"]
    return section


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
