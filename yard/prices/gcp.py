"""Google Cloud list prices from the Cloud Billing Catalog. The list contains prices for a vCPU, a GiB of memory and a
GPU. The price of a machine type is the sum of the prices of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from components import catalog
from components.catalog import machines
from yard.contract.strict_yaml import load_own
from yard.prices.web import Fetch, PriceError

BASE = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
"""SKUs of the Compute Engine service."""
SOURCE = "Cloud Billing Catalog API"
REGION = "us-central1"
KEY = "TRAINYARD_GCP_API_KEY"
"""Environment variable with the required API key. The key's project must use the Cloud Billing API."""
KEY_HEADER = "X-Goog-Api-Key"

_PAGE_SIZE = 5000
_MOST_PAGES = 100
_MIB_PER_GIB = 1024
_NANO = 1e-9


def quotes(wanted: Mapping[str, str], fetch: Fetch, base: str = BASE) -> dict[str, set[float]]:
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
            raise PriceError(f"{SOURCE}: a response has no skus. prices.yaml is unchanged")
        yield from answer["skus"]
        if not answer.get("nextPageToken"):
            return
        query["pageToken"] = answer["nextPageToken"]
    raise PriceError(f"{SOURCE}: the API keeps returning further pages. prices.yaml is unchanged")


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
