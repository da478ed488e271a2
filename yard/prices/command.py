"""Lists and updates the prices in the catalog."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import ValidationError

from components import catalog
from components.catalog import Price, machines, prices
from yard.prices import azure, gcp
from yard.prices.book import Book, PriceChange, header_of, updated, write
from yard.prices.web import PriceError, Web

FILE = Path(catalog.__file__).parent / "prices.yaml"
VENDORS: dict[str, ModuleType] = {"azure": azure, "gcp": gcp}
"""Price list modules by provider."""
SCOPE = (
    "List prices of one machine in US dollars per hour, in the region shown. Other regions differ. Spot prices change "
    "at any time; --json shows their dated source. "
    "Not included: boot and data disks, public IP addresses, NAT, network traffic, discounts, taxes."
)


def listed() -> list[dict[str, Any]]:
    """Return a row for each machine type in the clouds. `usd_per_hour` is None if the price is unknown."""
    unknown = {
        "usd_per_hour": None,
        "spot_usd_per_hour": None,
        "spot_source": "",
        "region": "",
        "dated": "",
        "source": "",
    }
    rows = []
    for provider in VENDORS:
        for machine in machines(provider):
            price = prices(provider).get(machine)
            facts = price.model_dump(exclude={"name"}) if price else unknown
            rows.append({"provider": provider, "machine": machine, **facts})
    return rows


def update(providers: Sequence[str], file: Path = FILE) -> dict[str, list[PriceChange]]:
    """Update the providers' prices, and return the changes by provider.

    Raises PriceError. The file is written only after all prices have been read.
    """
    text = file.read_text()
    book = _read(text)
    today = datetime.now(tz=UTC).date().isoformat()
    changes: dict[str, list[PriceChange]] = {}
    # A missing API key is reported before any request is sent.
    webs = {provider: Web(VENDORS[provider].BASE, _headers(provider)) for provider in providers}
    for provider, web in webs.items():
        vendor, rows = VENDORS[provider], book.get(provider, {})
        wanted = {name: rows[name].region if name in rows else vendor.REGION for name in machines(provider)}
        quotes = _quotes(vendor, wanted, web)
        book[provider], changes[provider] = updated(rows, quotes, wanted, vendor.SOURCE, today)
    written = write(book, header_of(text))
    if _read(written) != book:
        raise PriceError(f"the new text of {file.name} differs from the prices. {file.name} is unchanged")
    new = file.with_suffix(".new")
    new.write_text(written)
    new.replace(file)
    return changes


def _quotes(vendor: ModuleType, wanted: dict[str, str], web: Web) -> dict[str, set[float]]:
    try:
        found: dict[str, set[float]] = vendor.quotes(wanted, web, vendor.BASE)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PriceError(f"{vendor.SOURCE} returned an unknown format: {type(error).__name__}: {error}") from error
    return found


def _headers(provider: str) -> dict[str, str]:
    if provider != "gcp":
        return {}
    key = os.environ.get(gcp.KEY)
    if not key:
        raise PriceError(
            f"{gcp.SOURCE} needs an API key. Fix: create a key in a project with the Cloud Billing API, set "
            f"{gcp.KEY} to it, or use --provider azure"
        )
    return {gcp.KEY_HEADER: key}


def _read(text: str) -> Book:
    try:
        return {
            provider: {name: Price(name=name, **row) for name, row in rows.items()}
            for provider, rows in yaml.safe_load(text).items()
        }
    except (yaml.YAMLError, ValidationError, TypeError, AttributeError) as error:
        raise PriceError(f"prices.yaml cannot be read: {error}") from error
