"""Reads the account of a stack's cloud. A missing program or login is reported, and fails nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from jobs.preview.shape import QuotaShape
from jobs.quota import azure, gcp
from jobs.quota.verdict import AccountAnswer, Unanswered, judge

CLOUDS: dict[str, ModuleType] = {"azure": azure, "gcp": gcp}
"""By provider name."""

_SECONDS = 60
_ODD = (KeyError, TypeError, ValueError, AttributeError)
"""What parsing an answer of unknown form raises."""


def ask_account(
    platform: Mapping[str, Any], needs: Sequence[QuotaShape], machines: Sequence[str] = ()
) -> AccountAnswer:
    """Return what the account has of the needed quotas, and other obstacles. `platform`: the stack file's section."""
    if not needs:
        return AccountAnswer()
    cloud = CLOUDS.get(str(platform.get("provider")))
    if cloud is None:
        return AccountAnswer(problem=f"quotas of {platform.get('provider')} cannot be read")
    run = partial(_run, login=cloud.LOGIN)
    try:
        found = cloud.usage(platform, [need["quota"] for need in needs], run)
    except Unanswered as error:
        return AccountAnswer(problem=str(error))
    except _ODD as error:
        return AccountAnswer(problem=f"{cloud.PROGRAM} answered in an unknown form ({type(error).__name__}: {error})")
    verdicts = judge(needs, found, partial(cloud.command, platform))
    return AccountAnswer(verdicts=verdicts, notes=_notes(cloud, platform, machines, run) if machines else ())


def _notes(cloud: ModuleType, platform: Mapping[str, Any], machines: Sequence[str], run: Any) -> tuple[str, ...]:
    found: list[str] = []
    try:
        found.extend(cloud.notes(platform, machines, run))
    except Unanswered as error:
        found.append(f"not checked further: {error}")
    except _ODD as error:
        found.append(f"not checked further: {cloud.PROGRAM} answered in an unknown form ({type(error).__name__})")
    return tuple(found)


def _run(command: Sequence[str], login: str) -> Any:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Unanswered(f"{command[0]} is not on PATH; install it and run `{login}` to compare quotas") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]} did not answer within {_SECONDS} s") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
        raise Unanswered(f"{command[0]} refused: {words[0].strip()}; if it is not logged in, run `{login}`")
    return json.loads(done.stdout)
