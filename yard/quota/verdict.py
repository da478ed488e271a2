"""Compares required quotas with an account's usage and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yard.preview.shape import QuotaShape


class Unanswered(Exception):
    """The cloud's CLI failed or could not be started. The message states the reason."""


Run = Callable[[Sequence[str]], Any]
"""Function that runs a command and returns its parsed JSON. Raises Unanswered."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage and limit of a quota in its unit.

    `used` is None if the cloud reports only the limit. `limit` is None if the quota is unlimited.
    """

    used: float | None
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class QuotaVerdict:
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
class AccountAnswer:
    """Quotas in an account. `problem` is the reason why the account could not be read, or None. `notes` contains other
    obstacles, such as a disabled API, each with a command.
    """

    problem: str | None = None
    verdicts: tuple[QuotaVerdict, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    needs: Iterable[QuotaShape], usage: Mapping[str, Usage], command: Callable[[str], str]
) -> tuple[QuotaVerdict, ...]:
    """Return a verdict for each required quota. Quota names are compared without regard to case, spaces, '_' and '-'.

    `usage` contains the usage by quota name. `command` returns the command that shows a quota.
    """
    reported = {_plain(name): used for name, used in usage.items()}
    verdicts = []
    for need in needs:
        found = reported.get(_plain(need["quota"]))
        account = found or Usage(used=None, limit=None)
        verdicts.append(
            QuotaVerdict(
                quota=need["quota"],
                place=need["place"],
                needed=need["amount"],
                known=found is not None,
                used=account.used,
                limit=account.limit,
                command=command(need["quota"]),
            )
        )
    return tuple(verdicts)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " _-")
