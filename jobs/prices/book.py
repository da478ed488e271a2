"""The price list as text: what changes when a vendor's prices are known, and how the file is written. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from components.catalog import Price

_DIGITS = 4
"""Of a price, after the point."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

Book = dict[str, dict[str, Price]]
"""By provider, then by machine type."""


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """One machine type's fate. `before` and `after` in dollars an hour; `kept` says why the row stays as it is."""

    machine: str
    before: float | None
    after: float | None
    kept: str = ""


def renew(
    rows: Mapping[str, Price], quotes: Mapping[str, set[float]], regions: Mapping[str, str], source: str, today: str
) -> tuple[dict[str, Price], list[Renewed]]:
    """Return a provider's rows with the quoted prices, and what became of each. Nothing known is ever made unknown."""
    renewed, fates = dict(rows), []
    for machine, prices in quotes.items():
        row = rows.get(machine)
        before = row.usd_per_hour if row else None
        if len(prices) == 1:
            price = round(next(iter(prices)), _DIGITS)
            fates.append(Renewed(machine=machine, before=before, after=price))
            renewed[machine] = Price(
                name=machine,
                usd_per_hour=price,
                spot_usd_per_hour=row.spot_usd_per_hour if row else None,
                region=regions[machine],
                source=source,
                dated=today,
            )
        else:
            told = ", ".join(f"{price:g}" for price in sorted(prices))
            kept = f"the list has several prices: {told}" if prices else "the list has no price for it"
            fates.append(Renewed(machine=machine, before=before, after=before, kept=kept))
    return renewed, fates


def header_of(text: str) -> str:
    """Return the comment that a price file begins with."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))])


def write(book: Book, header: str) -> str:
    """Return the file's text, one line for each row."""
    lines = [line for provider, rows in book.items() for line in (f"{provider}:", *map(_line, rows.values()))]
    return header + "".join(f"{line}\n" for line in lines)


def _line(row: Price) -> str:
    usd = "null" if row.usd_per_hour is None else f"{row.usd_per_hour:.12g}"
    spot = {} if row.spot_usd_per_hour is None else {"spot_usd_per_hour": f"{row.spot_usd_per_hour:.12g}"}
    where = {"region": row.region, "source": _quoted(row.source), "dated": _quoted(row.dated)}
    fields = {"usd_per_hour": usd, **spot, **where}
    words = ", ".join(f"{key}: {value}" for key, value in fields.items())
    name = row.name if _PLAIN.fullmatch(row.name) else _quoted(row.name)
    return f"  {name}: {{{words}}}"


def _quoted(text: str) -> str:
    """Return the text as YAML and JSON both quote it."""
    return json.dumps(text, ensure_ascii=False)
