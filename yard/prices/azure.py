"""Azure list prices from the Retail Prices API, which needs no account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from yard.prices.web import Fetch, PriceError

BASE = "https://prices.azure.com/api/retail/prices"
SOURCE = "Azure Retail Prices API"
REGION = "eastus"
"""Default region for machine types without a row in prices.yaml."""

_OTHER_OFFERS = ("spot", "low priority")
_MOST_PAGES = 50


def quotes(wanted: Mapping[str, str], fetch: Fetch, base: str = BASE) -> dict[str, set[float]]:
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
            raise PriceError(f"{SOURCE}: the API keeps returning further pages for {name}. prices.yaml is unchanged")
        seen.add(page)
        answer = fetch(page)
        items = answer.get("Items")
        if not isinstance(items, list):
            raise PriceError(f"{SOURCE}: the response for {name} has no Items. prices.yaml is unchanged")
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
