"""Lists the prices in the catalog, and updates them from the clouds' public price lists.

A cloud's price list is a function in `VENDORS`. Requests go only to the origin of the list's address.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import product, takewhile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import yaml
from pydantic import ValidationError

from components import catalog
from components.catalog import Price, machines, prices
from trainyard.errors import ClusterError
from trainyard.strict_yaml import load_own

_MOST_PAGES = 100
_PAUSES = (2.0, 8.0, 30.0, 60.0)
"""Seconds before each retry."""
_TOO_MANY_REQUESTS = 429
_FIRST_SERVER_ERROR = 500

Fetch = Callable[[str], dict[str, Any]]
"""Function that requests a URL and returns the JSON object. Raises PriceError."""


class PriceError(ClusterError):
    """A price list is unavailable or incomplete, so prices.yaml is unchanged."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}. prices.yaml is unchanged")


def client(
    base: str, headers: Mapping[str, str], *, pause: Callable[[float], None] = time.sleep, seconds: float = 30.0
) -> Fetch:
    """Return a function that requests URLs which have the same origin as `base`.

    It retries failed connections and responses with status 429 or 5xx.
    """
    origin = _origin(base)

    def fetch(url: str) -> dict[str, Any]:
        if _origin(url) != origin:
            raise PriceError(f"{origin} links to another origin, {_origin(url)}")
        request = Request(url, headers={"Accept": "application/json", "User-Agent": "trainyard", **headers})  # noqa: S310
        for wait in (*_PAUSES, None):
            try:
                with urlopen(request, timeout=seconds) as answer:  # noqa: S310  (the origin was checked)
                    found = json.load(answer)
            except HTTPError as error:
                reason = f"HTTP status {error.code}"
                retry = error.code == _TOO_MANY_REQUESTS or error.code >= _FIRST_SERVER_ERROR
            except (HTTPException, OSError) as error:
                reason, retry = str(getattr(error, "reason", error)), True
            except ValueError:
                raise PriceError(f"{origin} returned text that is not JSON") from None
            else:
                if not isinstance(found, dict):
                    raise PriceError(f"{origin} returned JSON that is not an object")
                return found
            if wait is None or not retry:
                break
            pause(wait)
        raise PriceError(f"{origin} returned no price list: {reason}")

    return fetch


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.removesuffix(':443')}"


AZURE_URL = "https://prices.azure.com/api/retail/prices"
AZURE_SOURCE = "Azure Retail Prices API"

_OTHER_OFFERS = ("spot", "low priority")


def azure_quotes(wanted: Mapping[str, str], fetch: Fetch, base: str) -> dict[str, set[float]]:
    """Return each machine type's on-demand prices for Linux, in dollars per hour. Raises PriceError.

    `wanted` contains the region of each machine type. If the price list contains no price for a machine
    type, its set is empty. If the price list is ambiguous, the set contains several prices.
    """
    return {
        name: {float(item["retailPrice"]) for item in _items(name, region, fetch, base) if _is_list_price(item)}
        for name, region in wanted.items()
    }


def _items(name: str, region: str, fetch: Fetch, base: str) -> Iterator[dict[str, Any]]:
    rules = {"serviceName": "Virtual Machines", "priceType": "Consumption", "armRegionName": region, "armSkuName": name}
    query = " and ".join(f"{key} eq '{value}'" for key, value in rules.items())
    page: str | None = f"{base}?{urlencode({'$filter': query})}"
    seen: set[str] = set()
    while page:
        if page in seen or len(seen) == _MOST_PAGES:
            raise PriceError(f"{AZURE_SOURCE}: there is no last page for {name}")
        seen.add(page)
        answer = fetch(page)
        items = answer.get("Items")
        if not isinstance(items, list):
            raise PriceError(f"{AZURE_SOURCE}: the response for {name} has no Items")
        yield from (item for item in items if item.get("armSkuName") == name and item.get("armRegionName") == region)
        page = answer.get("NextPageLink")


def _is_list_price(item: Mapping[str, Any]) -> bool:
    """Return whether an item is the hourly price in dollars of an on-demand machine without Windows."""
    offer = f"{item.get('skuName', '')} {item.get('meterName', '')}".lower()
    return (
        item.get("type") == "Consumption"
        and item.get("currencyCode") == "USD"
        and item.get("unitOfMeasure") == "1 Hour"
        and item.get("tierMinimumUnits", 0) == 0
        and "windows" not in str(item.get("productName", "")).lower()
        and not any(other in offer for other in _OTHER_OFFERS)
        and float(item.get("retailPrice") or 0) > 0
    )


GCP_URL = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
"""SKUs of the Compute Engine service."""
GCP_SOURCE = "Cloud Billing Catalog API"
GCP_KEY = "TRAINYARD_GCP_API_KEY"
"""Environment variable with the required API key. The key's project must use the Cloud Billing API."""

_PAGE_SIZE = 5000
_MIB_PER_GIB = 1024
_NANO = 1e-9


def gcp_quotes(wanted: Mapping[str, str], fetch: Fetch, base: str) -> dict[str, set[float]]:
    """Return the on-demand prices of each machine type in dollars per hour. Raises PriceError.

    `wanted` contains the region of each machine type. The set of a machine type is empty if gcp_skus.yaml lacks its
    family or the list lacks a part. It contains several prices if the list is ambiguous.
    """
    parts = load_own((Path(catalog.__file__).parent / "gcp_skus.yaml").read_text())
    skus = list(_skus(fetch, base))
    return {name: _sums(name, region, parts.get(name.rpartition("-")[0]), skus) for name, region in wanted.items()}


def _skus(fetch: Fetch, base: str) -> Iterator[dict[str, Any]]:
    query: dict[str, str | int] = {"currencyCode": "USD", "pageSize": _PAGE_SIZE}
    for _ in range(_MOST_PAGES):
        answer = fetch(f"{base}?{urlencode(query)}")
        if not isinstance(answer.get("skus"), list):
            raise PriceError(f"{GCP_SOURCE}: a response has no skus")
        yield from answer["skus"]
        if not answer.get("nextPageToken"):
            return
        query["pageToken"] = answer["nextPageToken"]
    raise PriceError(f"{GCP_SOURCE}: there is no last page")


def _sums(name: str, region: str, parts: Mapping[str, str] | None, skus: Sequence[Mapping[str, Any]]) -> set[float]:
    """Return a machine type's price for each combination of the rates of its parts."""
    machine = machines("gcp")[name]
    if parts is None or (machine.gpus > 0) != ("gpu" in parts):
        return set()
    core, ram = (_rates(parts[part], region, skus) for part in ("core", "ram"))
    gpu = _rates(parts["gpu"], region, skus) if machine.gpus else {0.0}
    gib = machine.memory_mib / _MIB_PER_GIB
    return {round(machine.vcpus * a + gib * b + machine.gpus * c, 4) for a, b, c in product(core, ram, gpu)}


def _rates(description: str, region: str, skus: Sequence[Mapping[str, Any]]) -> set[float]:
    """Return the hourly rates of the region's on-demand SKUs whose description begins with `description`."""
    return {
        rate
        for sku in skus
        if str(sku.get("description", "")).startswith(description)
        and sku.get("category", {}).get("usageType") == "OnDemand"
        and region in sku.get("serviceRegions", ())
        for rate in _hourly(sku)
    }


def _hourly(sku: Mapping[str, Any]) -> Iterator[float]:
    for info in sku.get("pricingInfo", ())[-1:]:  # the last entry is the current price
        expression = info.get("pricingExpression", {})
        if expression.get("usageUnit") not in {"h", "GiBy.h"}:
            continue
        for tier in expression.get("tieredRates", ())[-1:]:
            price = tier.get("unitPrice", {})
            yield int(price.get("units") or 0) + int(price.get("nanos") or 0) * _NANO


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """A cloud's price list. `region` applies to machine types without a row in prices.yaml.

    `quotes` returns each machine type's prices in dollars per hour: none if the list has no price, several if the list
    is ambiguous.
    """

    url: str
    source: str
    region: str
    quotes: Callable[[Mapping[str, str], Fetch, str], dict[str, set[float]]]
    key: str = ""
    """Environment variable that contains the API key, or empty if the list needs none."""


VENDORS = {
    "azure": Vendor(url=AZURE_URL, source=AZURE_SOURCE, region="eastus", quotes=azure_quotes),
    "gcp": Vendor(url=GCP_URL, source=GCP_SOURCE, region="us-central1", quotes=gcp_quotes, key=GCP_KEY),
}

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


def _update_rows(
    rows: dict[str, Price], quotes: Mapping[str, set[float]], regions: Mapping[str, str], source: str
) -> list[PriceChange]:
    """Change each row that has exactly one quote. Returns the changes."""
    changes, today = [], datetime.now(tz=UTC).date().isoformat()
    for machine, found in quotes.items():
        row = rows.get(machine)
        before = row.usd_per_hour if row else None
        if len(found) == 1:
            price, kept = round(next(iter(found)), _DIGITS), ""
            fresh: dict[str, Any] = {
                "usd_per_hour": price,
                "region": regions[machine],
                "source": source,
                "dated": today,
            }
            rows[machine] = row.model_copy(update=fresh) if row else Price(name=machine, **fresh)
        else:
            several = ", ".join(f"{price:g}" for price in sorted(found))
            kept = f"the list contains {f'several prices: {several}' if found else 'no price for this type'}"
        changes.append(PriceChange(machine=machine, before=before, after=before if kept else price, kept=kept))
    return changes


def _line(row: Price) -> str:
    """Return a row of the price file. A JSON string is valid YAML."""
    fields = {
        "usd_per_hour": "null" if row.usd_per_hour is None else f"{row.usd_per_hour:.12g}",
        "region": row.region,
        "source": json.dumps(row.source, ensure_ascii=False),
        "dated": json.dumps(row.dated),
    }
    if row.spot_usd_per_hour is not None:
        fields["spot_usd_per_hour"] = f"{row.spot_usd_per_hour:.12g}"
        fields["spot_source"] = json.dumps(row.spot_source, ensure_ascii=False)
    values = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"  {row.name}: {{{values}}}"


FILE = Path(catalog.__file__).parent / "prices.yaml"
SCOPE = (
    "List prices of one machine in US dollars per hour, in the region shown. Other regions differ. Spot prices change "
    "at any time; --json shows their dated source. "
    "Not included: boot and data disks, public IP addresses, NAT, network traffic, discounts, taxes."
)


def listed() -> list[dict[str, Any]]:
    """Return a row for each machine type in the clouds. `usd_per_hour` is None if the price is unknown."""
    unknown: dict[str, Any] = {"usd_per_hour": None, "spot_usd_per_hour": None}
    unknown |= dict.fromkeys(("spot_source", "region", "dated", "source"), "")
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
    changes: dict[str, list[PriceChange]] = {}
    # A missing API key is reported before any request is sent.
    clients = {provider: client(VENDORS[provider].url, _headers(VENDORS[provider])) for provider in providers}
    for provider, fetch in clients.items():
        vendor, rows = VENDORS[provider], book.setdefault(provider, {})
        wanted = {name: rows[name].region if name in rows else vendor.region for name in machines(provider)}
        try:
            quotes = vendor.quotes(wanted, fetch, vendor.url)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PriceError(f"{vendor.source} returned an unknown format: {type(error).__name__}: {error}") from error
        changes[provider] = _update_rows(rows, quotes, wanted, vendor.source)
    header = takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line for provider, rows in book.items() for line in (f"{provider}:", *map(_line, rows.values()))]
    new = file.with_suffix(".new")
    new.write_text("\n".join([*header, *lines]) + "\n")
    new.replace(file)
    return changes


def _headers(vendor: Vendor) -> dict[str, str]:
    if not vendor.key:
        return {}
    if key := os.environ.get(vendor.key):
        return {"X-Goog-Api-Key": key}
    raise PriceError(
        f"{vendor.source} needs an API key. Fix: create a key in a project with the Cloud Billing API, set "
        f"{vendor.key} to it, or use --provider azure"
    )


def _read(text: str) -> Book:
    try:
        return {
            provider: {name: Price(name=name, **row) for name, row in rows.items()}
            for provider, rows in yaml.safe_load(text).items()
        }
    except (yaml.YAMLError, ValidationError, TypeError, AttributeError) as error:
        raise PriceError(f"prices.yaml cannot be read: {error}") from error
