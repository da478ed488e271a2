"""Updates prices, and formats them as text for prices.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from components.catalog import Price

_DIGITS = 4
"""Number of decimal places in a price."""

Book = dict[str, dict[str, Price]]
"""Prices by provider and machine type."""


@dataclass(frozen=True, kw_only=True)
class PriceChange:
    """The change of a price in dollars per hour. `kept` is empty, or the reason why the row was not changed."""

    machine: str
    before: float | None
    after: float | None
    kept: str = ""


def updated(
    rows: Mapping[str, Price], quotes: Mapping[str, set[float]], regions: Mapping[str, str], source: str, today: str
) -> tuple[dict[str, Price], list[PriceChange]]:
    """Return a provider's updated rows, and the changes. A row changes only if it has exactly one quote."""
    new_rows, changes = dict(rows), []
    for machine, prices in quotes.items():
        row = rows.get(machine)
        before = row.usd_per_hour if row else None
        if len(prices) != 1:
            several = ", ".join(f"{price:g}" for price in sorted(prices))
            kept = (
                f"the list contains several prices: {several}" if prices else "the list contains no price for this type"
            )
            changes.append(PriceChange(machine=machine, before=before, after=before, kept=kept))
            continue
        price = round(next(iter(prices)), _DIGITS)
        changes.append(PriceChange(machine=machine, before=before, after=price))
        new_rows[machine] = Price(
            name=machine,
            usd_per_hour=price,
            spot_usd_per_hour=row.spot_usd_per_hour if row else None,
            spot_source=row.spot_source if row else "",
            region=regions[machine],
            source=source,
            dated=today,
        )
    return new_rows, changes


def header_of(text: str) -> str:
    return "".join(takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True)))


def write(book: Book, header: str) -> str:
    """Return the text of the price file, with one line per row."""
    lines = [line for provider, rows in book.items() for line in (f"{provider}:", *map(_line, rows.values()))]
    return header + "\n".join(lines) + "\n"


def _line(row: Price) -> str:
    usd = "null" if row.usd_per_hour is None else f"{row.usd_per_hour:.12g}"
    origin = {"region": row.region, "source": _quoted(row.source), "dated": _quoted(row.dated)}
    fields = {"usd_per_hour": usd, **origin}
    if row.spot_usd_per_hour is not None:
        fields |= {"spot_usd_per_hour": f"{row.spot_usd_per_hour:.12g}", "spot_source": _quoted(row.spot_source)}
    values = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"  {row.name}: {{{values}}}"


def _quoted(text: str) -> str:
    """Return the text as a JSON string, which is valid YAML."""
    return json.dumps(text, ensure_ascii=False)
