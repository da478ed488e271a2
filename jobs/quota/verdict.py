"""Whether an account's quotas suffice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobs.preview.shape import QuotaShape


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One quota of an account, in its own unit. `limit` is None where the account has none."""

    used: float
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class QuotaVerdict:
    """One needed quota. `used` is None where the account's answer does not have it: then nothing is known."""

    quota: str
    place: str
    needed: int
    used: float | None
    limit: float | None

    @property
    def short_by(self) -> float | None:
        """How much is missing: 0 where it suffices, None where nothing is known."""
        if self.used is None:
            return None
        return 0.0 if self.limit is None else max(0.0, self.used + self.needed - self.limit)


@dataclass(frozen=True, kw_only=True)
class AccountAnswer:
    """What the account said. `problem` says why it could not be asked; then there are no verdicts."""

    problem: str | None = None
    verdicts: tuple[QuotaVerdict, ...] = ()


def judge(needs: Iterable[QuotaShape], usage: Mapping[str, Usage]) -> tuple[QuotaVerdict, ...]:
    """Compare needs with an account's usage by quota. Names are compared without case, spaces, '_' and '-'."""
    known = {_plain(name): used for name, used in usage.items()}
    return tuple(_verdict(need, known.get(_plain(need["quota"]))) for need in needs)


def _verdict(need: QuotaShape, usage: Usage | None) -> QuotaVerdict:
    return QuotaVerdict(
        quota=need["quota"],
        place=need["place"],
        needed=need["amount"],
        used=usage.used if usage else None,
        limit=usage.limit if usage else None,
    )


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " _-")
