"""Reads the quotas in a stack's cloud account with the cloud's CLI, and compares them with the required quotas.

cloud_cli.py contains the commands and parsers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from components.spec.model import PlatformSpec
from yard.preview.cloud_cli import Unanswered, Usage, cloud_cli
from yard.preview.describe import Description, Quota

_SECONDS = 60
"""Default time limit for each call of the CLI."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A required quota with its usage and limit in the account.

    `known` is False if the cloud did not report the quota. `command` shows the quota.
    """

    quota: str
    place: str
    needed: int
    known: bool
    used: float | None
    limit: float | None
    command: str

    @property
    def short_by(self) -> float | None:
        """The missing amount, or None if the quota is unknown. Unknown usage is treated as 0."""
        if not self.known:
            return None
        return 0.0 if self.limit is None else max(0.0, (self.used or 0) + self.needed - self.limit)


@dataclass(frozen=True, kw_only=True)
class Account:
    """Quotas in an account. `problem` is the reason why the account could not be read, or None.

    `notes` contains other obstacles, such as a disabled API, each with a command.
    """

    problem: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


def read_account(description: Description, seconds: float = _SECONDS) -> Account:
    """Return the usage and limits of the quotas that a valid stack needs, and other obstacles such as a disabled API.

    `seconds` is the time limit for each call of the CLI.
    """
    plan = description.plan
    machines = list(dict.fromkeys(host.machine.name for host in plan.hosts)) if plan else []
    return account_of(plan.platform, description.quota, machines, seconds) if plan else Account()


def account_of(
    platform: PlatformSpec, needs: Sequence[Quota], machines: Sequence[str] = (), seconds: float = _SECONDS
) -> Account:
    """Return the usage and limits of the quotas, and obstacles for the machine types."""
    if not needs:
        return Account()
    cloud = cloud_cli(platform, partial(_run, seconds=seconds))
    if cloud is None:
        return Account(problem=f"yard cannot read quotas for {platform.provider}")
    try:
        with _parsing(cloud.program):
            found = cloud.usage([need.quota for need in needs])
    except Unanswered as error:
        return Account(problem=f"{error}; if it is not logged in, run `{cloud.login}`")
    notes: list[str] = []
    try:
        with _parsing(cloud.program):
            notes.extend(cloud.notes(machines) if machines else ())
    except Unanswered as error:
        notes.append(f"further checks were skipped: {error}")
    return Account(verdicts=judge(needs, found, cloud.command), notes=tuple(notes))


def judge(needs: Sequence[Quota], usage: Mapping[str, Usage], command: Callable[[str], str]) -> tuple[Verdict, ...]:
    """Return a verdict for each required quota. Quota names are compared without regard to case, spaces, '_' and '-'.

    `usage` contains the usage by quota name. `command` returns the command that shows a quota.
    """
    reported = {_plain(name): used for name, used in usage.items()}
    rows = [(need, reported.get(_plain(need.quota))) for need in needs]
    return tuple(
        Verdict(
            quota=need.quota,
            place=need.place,
            needed=need.amount,
            known=found is not None,
            used=found.used if found else None,
            limit=found.limit if found else None,
            command=command(need.quota),
        )
        for need, found in rows
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " _-")


@contextmanager
def _parsing(program: str) -> Iterator[None]:
    """Raise Unanswered for errors caused by output in an unknown format."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(f"{program} printed an unknown format ({type(error).__name__}: {error})") from error


def _run(command: Sequence[str], seconds: float) -> Any:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise Unanswered(f"{command[0]} is not on PATH. Fix: install it") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]} did not finish within {seconds:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no error message"]
        raise Unanswered(f"{command[0]} failed: {lines[0].strip()}")
    return json.loads(done.stdout)
