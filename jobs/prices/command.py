"""Shows the price list, and renews it: everything is read and checked before the file is touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import yaml
from pydantic import ValidationError

from components import catalog
from components.catalog import Price, machines, prices
from components.platforms import PLATFORMS
from jobs.prices import azure, gcp
from jobs.prices.book import Book, Renewed, header_of, renew, write
from jobs.prices.web import PriceError, Web

FILE = Path(catalog.__file__).parent / "prices.yaml"
VENDORS: dict[str, ModuleType] = {"azure": azure, "gcp": gcp}
"""By provider name."""


def listed() -> dict[str, list[Price | str]]:
    """Return each provider's prices, and the bare name of each machine type that has none."""
    return {
        provider: [prices(provider).get(name, name) for name in machines(provider)]
        for provider in PLATFORMS
        if provider in VENDORS
    }


def update(providers: Sequence[str], file: Path = FILE) -> dict[str, list[Renewed]]:
    """Renew the providers' prices in the file; return what became of each machine type. Raises PriceError."""
    text = file.read_text()
    book = _read(text)
    today = datetime.now(tz=UTC).date().isoformat()
    fates: dict[str, list[Renewed]] = {}
    # A missing key is found before the first question.
    webs = {provider: Web(VENDORS[provider].BASE, _headers(provider)) for provider in providers}
    for provider, web in webs.items():
        vendor, rows = VENDORS[provider], book.get(provider, {})
        wanted = {name: rows[name].region if name in rows else vendor.REGION for name in machines(provider)}
        quotes = _quotes(vendor, wanted, web)
        book[provider], fates[provider] = renew(rows, quotes, wanted, vendor.SOURCE, today)
    written = write(book, header_of(text))
    if _read(written) != book:
        raise PriceError(f"{file.name} would not read as it was written; it stays as it is")
    fresh = file.with_suffix(".new")
    fresh.write_text(written)
    fresh.replace(file)
    return fates


def _quotes(vendor: ModuleType, wanted: dict[str, str], web: Web) -> dict[str, set[float]]:
    try:
        found: dict[str, set[float]] = vendor.quotes(wanted, web, vendor.BASE)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PriceError(f"{vendor.SOURCE} answers in an unknown form: {type(error).__name__}: {error}") from error
    return found


def _headers(provider: str) -> dict[str, str]:
    if provider != "gcp":
        return {}
    key = os.environ.get(gcp.KEY)
    if not key:
        raise PriceError(
            f"{gcp.SOURCE} answers only with an API key; make one in a project that has the Cloud Billing API and put "
            f"it into {gcp.KEY}, or use --provider azure"
        )
    return {gcp.KEY_HEADER: key}


def _read(text: str) -> Book:
    try:
        return {
            provider: {name: Price(name=name, **row) for name, row in rows.items()}
            for provider, rows in yaml.safe_load(text).items()
        }
    except (yaml.YAMLError, ValidationError, TypeError, AttributeError) as error:
        raise PriceError(f"the file of prices cannot be read: {error}") from error
