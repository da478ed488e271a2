"""Azure's list prices, from its Retail Prices API: public, without a login, a page of a hundred meters at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from jobs.prices.web import Fetch, PriceError

BASE = "https://prices.azure.com/api/retail/prices"
SOURCE = "Azure Retail Prices API"
REGION = "eastus"
"""Where a machine type is looked up that the price list does not have yet."""

_OTHER_OFFERS = ("spot", "low priority")
_MOST_PAGES = 50


def quotes(wanted: Mapping[str, str], fetch: Fetch, base: str = BASE) -> dict[str, set[float]]:
    """Return the prices on demand, with Linux, of each machine type in its region. `wanted`: type to region.

    An empty set: the list has none. More than one price: it is not clear which is meant. Raises PriceError.
    """
    return {
        name: {float(item["retailPrice"]) for item in _items(name, region, fetch, base) if _is_list_price(item)}
        for name, region in wanted.items()
    }


def _items(name: str, region: str, fetch: Fetch, base: str) -> Iterator[dict[str, Any]]:
    rules = {"serviceName": "Virtual Machines", "priceType": "Consumption", "armRegionName": region, "armSkuName": name}
    words = " and ".join(f"{key} eq '{value}'" for key, value in rules.items())
    page: str | None = f"{base}?{urlencode({'$filter': words})}"
    seen: set[str] = set()
    while page:
        if page in seen or len(seen) == _MOST_PAGES:
            raise PriceError(f"{SOURCE}: the pages for {name} have no end. The file of prices stays as it is")
        seen.add(page)
        answer = fetch(page)
        items = answer.get("Items")
        if not isinstance(items, list):
            raise PriceError(f"{SOURCE}: the answer for {name} has no Items. The file of prices stays as it is")
        yield from (item for item in items if item.get("armSkuName") == name and item.get("armRegionName") == region)
        page = answer.get("NextPageLink")


def _is_list_price(item: Mapping[str, Any]) -> bool:
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
