"""Reads the quotas of a stack's cloud account, and compares them with the quotas that the stack needs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from components.platforms.azure.spec import AzureSpec
from components.platforms.gcp.spec import GcpSpec
from components.spec.model import PlatformSpec
from yard.preview.cloud_cli import AzureCli, GcloudCli, Unanswered, Usage
from yard.preview.describe import Description, Quota

_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A required quota, and its usage and limit in the account. `known` is false if the cloud did not report them.

    `command` is the command that shows the quota.
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
        """The missing amount, or None if the quota is unknown. Unknown usage counts as 0."""
        if not self.known:
            return None
        return 0.0 if self.limit is None else max(0.0, (self.used or 0) + self.needed - self.limit)


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account's quotas, or the problem that prevented reading them.

    `notes` describes other obstacles, such as a disabled API.
    """

    problem: str | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()


def read_account(description: Description, seconds: float = _SECONDS) -> Account:
    """Return the usage and limits of the quotas that a stack needs, and other obstacles in its account.

    `seconds` is the time limit for each call of the cloud's CLI.
    """
    plan = description.plan
    machines = list(dict.fromkeys(host.machine.name for host in plan.hosts)) if plan else []
    return account_of(plan.platform, description.quota, machines, seconds) if plan else Account()


def account_of(
    platform: PlatformSpec, needs: Sequence[Quota], machines: Sequence[str] = (), seconds: float = _SECONDS
) -> Account:
    """Return the usage and limits of the quotas in `needs`, and obstacles to using the machine types."""
    run = partial(_run, seconds=seconds)
    if not needs:
        return Account()
    if isinstance(platform, AzureSpec):
        cloud: AzureCli | GcloudCli = AzureCli(platform, run)
    elif isinstance(platform, GcpSpec):
        cloud = GcloudCli(platform, run)
    else:
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
    """Return a verdict for each required quota. The function `command` returns the command that shows a quota.

    Names are compared without case, spaces, '_' and '-', because the clouds spell them differently.
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
    """Raise Unanswered if the program's output has an unknown format."""
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
