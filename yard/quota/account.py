"""Reads the quotas in a stack's cloud account. If the CLI or the login is missing, the result contains the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from yard.preview.shape import QuotaShape
from yard.quota import azure, gcp
from yard.quota.verdict import AccountAnswer, Unanswered, judge

CLOUDS: dict[str, ModuleType] = {"azure": azure, "gcp": gcp}

_SECONDS = 60
"""Default time limit for each CLI call."""


def read_account(
    platform: Mapping[str, Any],
    needs: Sequence[QuotaShape],
    machines: Sequence[str] = (),
    *,
    seconds: float = _SECONDS,
) -> AccountAnswer:
    """Return the usage and limits of the required quotas, and other obstacles such as a disabled API.

    `platform` is the platform section of the stack file. `seconds` is the time limit for each CLI call.
    """
    if not needs:
        return AccountAnswer()
    cloud = CLOUDS.get(str(platform.get("provider")))
    if cloud is None:
        return AccountAnswer(problem=f"yard cannot read quotas for {platform.get('provider')}")
    run = partial(_run, login=cloud.LOGIN, seconds=seconds)
    try:
        with _parsing(cloud.PROGRAM):
            found = cloud.usage(platform, [need["quota"] for need in needs], run)
    except Unanswered as error:
        return AccountAnswer(problem=str(error))
    notes: list[str] = []
    try:
        with _parsing(cloud.PROGRAM):
            notes.extend(cloud.notes(platform, machines, run) if machines else ())
    except Unanswered as error:
        notes.append(f"further checks were skipped: {error}")
    return AccountAnswer(verdicts=judge(needs, found, partial(cloud.command, platform)), notes=tuple(notes))


def available_machines(platform: Mapping[str, Any], *, seconds: float = _SECONDS) -> frozenset[str]:
    """Return the machine types that the account can use in the region. Raises Unanswered.

    `platform` is the platform section of the stack file. `seconds` is the time limit for the CLI call.
    """
    cloud = CLOUDS[str(platform["provider"])]
    with _parsing(cloud.PROGRAM):
        return frozenset(cloud.available(platform, partial(_run, login=cloud.LOGIN, seconds=seconds)))


@contextmanager
def _parsing(program: str) -> Iterator[None]:
    """Raise Unanswered for errors caused by output in an unknown format."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(f"{program} printed an unknown format ({type(error).__name__}: {error})") from error


def _run(command: Sequence[str], login: str, seconds: float) -> Any:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise Unanswered(f"{command[0]} is not on PATH. Fix: install it and run `{login}`") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]} did not finish within {seconds:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no error message"]
        raise Unanswered(f"{command[0]} failed: {lines[0].strip()}; if it is not logged in, run `{login}`")
    return json.loads(done.stdout)
