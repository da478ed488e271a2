"""Asks the account of a stack's cloud. A missing program or login is an answer like others, not a failure."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from jobs.preview.shape import QuotaShape
from jobs.quota import azure, gcp
from jobs.quota.verdict import AccountAnswer, judge

CLOUDS: dict[str, ModuleType] = {"azure": azure, "gcp": gcp}
"""By provider name."""

_SECONDS = 60


class _Unanswered(Exception):
    """The program gave no answer; the message says why."""


def ask_account(platform: Mapping[str, Any], needs: Sequence[QuotaShape]) -> AccountAnswer:
    """Return what the account has of the needed quotas. `platform` is the stack file's section."""
    if not needs:
        return AccountAnswer()
    cloud = CLOUDS.get(str(platform.get("provider")))
    if cloud is None:
        return AccountAnswer(problem=f"nobody wrote how to ask {platform.get('provider')} for quotas")
    try:
        found = cloud.usage(platform, lambda command: _run(command, cloud.LOGIN))
    except _Unanswered as error:
        return AccountAnswer(problem=str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return AccountAnswer(problem=f"{cloud.PROGRAM} answered in an unknown form ({type(error).__name__}: {error})")
    return AccountAnswer(verdicts=judge(needs, found))


def _run(command: Sequence[str], login: str) -> Any:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise _Unanswered(f"{command[0]} is not on PATH; install it and run `{login}` to compare quotas") from None
    except subprocess.TimeoutExpired:
        raise _Unanswered(f"{command[0]} did not answer within {_SECONDS} s") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
        raise _Unanswered(f"{command[0]} refused: {words[0].strip()}; if it is not logged in, run `{login}`")
    return json.loads(done.stdout)
