"""Whether an account's quotas suffice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jobs.preview.shape import QuotaShape


class Unanswered(Exception):
    """The cloud's program gave no answer; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One quota of an account, in its own unit."""

    used: float | None
    """None if the cloud reports the limit only."""
    limit: float | None
    """None if there is no limit."""


@dataclass(frozen=True, kw_only=True)
class QuotaVerdict:
    """One needed quota."""

    quota: str
    place: str
    needed: int
    known: bool
    """Whether the account's answer contains the quota."""
    used: float | None
    limit: float | None
    command: str
    """The command that shows the quota."""

    @property
    def short_by(self) -> float | None:
        """How much is missing: 0 if the quota suffices, None if the quota is unknown. Unknown usage counts as 0."""
        if not self.known:
            return None
        return 0.0 if self.limit is None else max(0.0, (self.used or 0) + self.needed - self.limit)


@dataclass(frozen=True, kw_only=True)
class AccountAnswer:
    """What the account reports. `problem`: why it could not be read; then there are no verdicts.

    `notes`: other obstacles, for example an API that is not enabled, each with its command.
    """

    problem: str | None = None
    verdicts: tuple[QuotaVerdict, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    needs: Iterable[QuotaShape], usage: Mapping[str, Usage], command: Callable[[str], str]
) -> tuple[QuotaVerdict, ...]:
    """Compare needs with an account's usage by quota. Names are compared without case, spaces, '_' and '-'."""
    known = {_plain(name): used for name, used in usage.items()}
    return tuple(_verdict(need, known.get(_plain(need["quota"])), command(need["quota"])) for need in needs)


def _verdict(need: QuotaShape, usage: Usage | None, command: str) -> QuotaVerdict:
    return QuotaVerdict(
        quota=need["quota"],
        place=need["place"],
        needed=need["amount"],
        known=usage is not None,
        used=usage.used if usage else None,
        limit=usage.limit if usage else None,
        command=command,
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " _-")
