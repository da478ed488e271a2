"""Lists the prices in the catalog, and updates Azure's prices from its public price list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from components import catalog
from components.catalog import Price, machines, prices
from trainyard.errors import ClusterError
from trainyard.strict_yaml import load_own

FILE = Path(catalog.__file__).parent / "prices.yaml"
SCOPE = (
    "List prices of one machine in US dollars per hour, in the region shown. Other regions differ. Spot prices change "
    "at any time; --json shows their dated source. "
    "Not included: boot and data disks, public IP addresses, NAT, Azure Bastion, network traffic, discounts, taxes."
)
URL = "https://prices.azure.com/api/retail/prices"
SOURCE = "Azure Retail Prices API"
_REGION = "eastus"
"""The region for machine types that have no row in prices.yaml yet."""
_SECONDS = 30
_MOST_PAGES = 100


class PriceError(ClusterError):
    """A price list is unavailable or incomplete, so prices.yaml is unchanged."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{SOURCE}: {problem}. prices.yaml is unchanged")


@dataclass(frozen=True, kw_only=True)
class PriceChange:
    """A machine's old and new price in dollars per hour. `kept` says why the row was not changed, or is empty."""

    machine: str
    before: float | None
    after: float | None
    kept: str = ""


def listed() -> list[dict[str, Any]]:
    """Return a row for each of the clouds' machine types. `usd_per_hour` is None if the price is unknown."""
    unknown: dict[str, Any] = {"usd_per_hour": None, "spot_usd_per_hour": None}
    unknown |= dict.fromkeys(("spot_source", "region", "dated", "source"), "")
    rows = []
    for provider in load_own(FILE.read_text()):
        for machine in machines(provider):
            price = prices(provider).get(machine)
            facts = price.model_dump(exclude={"name"}) if price else unknown
            rows.append({"provider": provider, "machine": machine, **facts})
    return rows


def update(file: Path = FILE) -> list[PriceChange]:
    """Update Azure's prices. Raises PriceError. The file is written only after all prices have been read."""
    text = file.read_text()
    book = {
        provider: {name: Price(name=name, **row) for name, row in rows.items()}
        for provider, rows in load_own(text).items()
    }
    rows, changes, today = book["azure"], [], datetime.now(tz=UTC).date().isoformat()
    for machine in machines("azure"):
        row = rows.get(machine)
        region = row.region if row else _REGION
        try:
            quotes = {float(item["retailPrice"]) for item in _items(machine, region) if _is_list_price(item)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PriceError(f"unknown format: {type(error).__name__}: {error}") from error
        before = row.usd_per_hour if row else None
        if len(quotes) != 1:
            several = ", ".join(f"{price:g}" for price in sorted(quotes))
            kept = f"the list contains {f'several prices: {several}' if quotes else 'no price for this type'}"
            changes.append(PriceChange(machine=machine, before=before, after=before, kept=kept))
            continue
        fresh: dict[str, Any] = {
            "usd_per_hour": round(quotes.pop(), 4),
            "region": region,
            "source": SOURCE,
            "dated": today,
        }
        rows[machine] = row.model_copy(update=fresh) if row else Price(name=machine, **fresh)
        changes.append(PriceChange(machine=machine, before=before, after=fresh["usd_per_hour"]))
    header = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line for provider, rows in book.items() for line in (f"{provider}:", *map(_line, rows.values()))]
    new = file.with_suffix(".new")
    new.write_text("\n".join([*header, *lines]) + "\n")
    new.replace(file)
    return changes


def _items(machine: str, region: str) -> Iterator[dict[str, Any]]:
    rules = {
        "serviceName": "Virtual Machines",
        "priceType": "Consumption",
        "armRegionName": region,
        "armSkuName": machine,
    }
    query = urlencode({"$filter": " and ".join(f"{key} eq '{value}'" for key, value in rules.items())})
    page = f"{URL}?{query}"
    for _ in range(_MOST_PAGES):
        if not page.startswith(f"{URL}?"):
            raise PriceError(f"the response for {machine} links to another address, {page}")
        try:
            with urlopen(page, timeout=_SECONDS) as answer:  # noqa: S310  (the address was checked)
                found = json.load(answer)
        except (HTTPException, OSError) as error:
            raise PriceError(f"no response for {machine}: {error}. Fix: run the command again later") from error
        for item in found["Items"]:
            if item["armSkuName"] == machine and item["armRegionName"] == region:
                yield item
        page = found.get("NextPageLink")
        if not page:
            return
    raise PriceError(f"there is no last page for {machine}")


def _is_list_price(item: Mapping[str, Any]) -> bool:
    """Return whether an item is an on-demand price in dollars per hour for a machine without Windows."""
    offer = f"{item.get('skuName', '')} {item.get('meterName', '')}".lower()
    return (
        item.get("type") == "Consumption"
        and item.get("currencyCode") == "USD"
        and item.get("unitOfMeasure") == "1 Hour"
        and item.get("tierMinimumUnits", 0) == 0
        and "windows" not in str(item.get("productName", "")).lower()
        and not any(other in offer for other in ("spot", "low priority"))
        and float(item.get("retailPrice") or 0) > 0
    )


def _line(row: Price) -> str:
    """Return a line of the price file. Texts are written as JSON strings, which are valid YAML."""
    fields = {
        "usd_per_hour": "null" if row.usd_per_hour is None else f"{row.usd_per_hour:.12g}",
        "region": row.region,
        "source": json.dumps(row.source, ensure_ascii=False),
        "dated": json.dumps(row.dated),
    }
    if row.spot_usd_per_hour is not None:
        fields["spot_usd_per_hour"] = f"{row.spot_usd_per_hour:.12g}"
        fields["spot_source"] = json.dumps(row.spot_source, ensure_ascii=False)
    return f"  {row.name}: {{{', '.join(f'{key}: {value}' for key, value in fields.items())}}}"
