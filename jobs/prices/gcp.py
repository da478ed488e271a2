"""Google's list prices, from the Cloud Billing Catalog: by vCPU, GiB and GPU, so a machine's is a sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from components import catalog
from components.catalog import machines
from jobs.prices.web import Fetch, PriceError

BASE = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
"""The service is Compute Engine."""
SOURCE = "Cloud Billing Catalog API"
REGION = "us-central1"
KEY = "TRAINYARD_GCP_API_KEY"
"""Environment variable with an API key of any project that has the Cloud Billing API: Google asks for one."""
KEY_HEADER = "X-Goog-Api-Key"

_PAGE_SIZE = 5000
_MOST_PAGES = 100
_MIB_PER_GIB = 1024
_NANO = 1e-9


def quotes(wanted: Mapping[str, str], fetch: Fetch, base: str = BASE) -> dict[str, set[float]]:
    """Return the price on demand of each machine type in its region. `wanted`: type to region.

    An empty set: its family's parts are not recorded, or the list lacks one. More than one price: it is not clear which
    is meant. Raises PriceError.
    """
    parts = _parts()
    skus = list(_skus(fetch, base))
    return {name: _sums(name, region, parts.get(name.rpartition("-")[0]), skus) for name, region in wanted.items()}


def _parts() -> dict[str, dict[str, str]]:
    file = Path(catalog.__file__).parent / "gcp_skus.yaml"
    read: dict[str, dict[str, str]] = yaml.safe_load(file.read_text())
    return read


def _skus(fetch: Fetch, base: str) -> Iterator[dict[str, Any]]:
    token, seen = "", 0
    while True:
        query = {"currencyCode": "USD", "pageSize": _PAGE_SIZE} | ({"pageToken": token} if token else {})
        answer = fetch(f"{base}?{urlencode(query)}")
        seen += 1
        if not isinstance(answer.get("skus"), list):
            raise PriceError(f"{SOURCE}: an answer has no skus. The file of prices stays as it is")
        yield from answer["skus"]
        token = answer.get("nextPageToken") or ""
        if not token:
            return
        if seen == _MOST_PAGES:
            raise PriceError(f"{SOURCE}: the pages have no end. The file of prices stays as it is")


def _sums(name: str, region: str, parts: Mapping[str, str] | None, skus: Iterable[Mapping[str, Any]]) -> set[float]:
    machine = machines("gcp")[name]
    if parts is None or (machine.gpus > 0) != ("gpu" in parts):
        return set()
    skus = list(skus)
    core, ram = (_rates(parts[part], region, skus) for part in ("core", "ram"))
    gpu = _rates(parts["gpu"], region, skus) if machine.gpus else {0.0}
    gib = machine.memory_mib / _MIB_PER_GIB
    return {
        round(machine.vcpus * one + gib * each + machine.gpus * other, 4)
        for one in core
        for each in ram
        for other in gpu
    }


def _rates(description: str, region: str, skus: Iterable[Mapping[str, Any]]) -> set[float]:
    """Return the hourly rates of the SKUs on demand whose descriptions begin so, in the region."""
    fitting = (
        sku
        for sku in skus
        if str(sku.get("description", "")).startswith(description)
        and sku.get("category", {}).get("usageType") == "OnDemand"
        and region in sku.get("serviceRegions", ())
    )
    return {rate for sku in fitting for rate in _hourly(sku)}


def _hourly(sku: Mapping[str, Any]) -> Iterator[float]:
    for info in sku.get("pricingInfo", ())[-1:]:  # the latest; older ones come first
        expression = info.get("pricingExpression", {})
        if expression.get("usageUnit") not in {"h", "GiBy.h"}:
            continue
        for tier in expression.get("tieredRates", ())[-1:]:
            price = tier.get("unitPrice", {})
            yield int(price.get("units") or 0) + int(price.get("nanos") or 0) * _NANO
