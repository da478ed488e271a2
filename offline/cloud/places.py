"""Reject regions and zones that do not exist. The facts and their sources are in components/catalog/azure_regions.yaml
and gcp_zones.yaml. The error codes are from the APIs: LocationNotAvailableForResourceType (Azure Resource Manager) and
"Unknown zone" (Compute Engine).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from trainyard.checkout import ROOT
from trainyard.strict_yaml import load_own

_CATALOG = ROOT / "components" / "catalog"
_EVERYWHERE = "global"
"""The location of Azure resources that have no region, for example private DNS zones."""


def azure_refusal(location: str) -> str:
    """Return Azure's error message for a location, or "" for a location that exists."""
    name = location.replace(" ", "").lower()
    if not name or name == _EVERYWHERE or name in _azure_regions():
        return ""
    return (
        f"Code=LocationNotAvailableForResourceType Message=The provided location '{location}' is not available. "
        "Fix: use a region that `az account list-locations` prints"
    )


def gcp_refusal(zone: str) -> str:
    """Return Compute Engine's error message for a zone, or "" for a zone that exists."""
    region, _, letter = zone.rpartition("/")[2].rpartition("-")
    if not zone or letter in _gcp_zones().get(region, ""):
        return ""
    return f"googleapi: Error 400: Invalid value for field 'zone': '{zone}'. Unknown zone., invalid"


@cache
def _azure_regions() -> frozenset[str]:
    regions = _read("azure_regions.yaml")["regions"]
    return frozenset(regions["with_zones"]) | frozenset(regions["without_zones"])


@cache
def _gcp_zones() -> dict[str, str]:
    zones: dict[str, str] = _read("gcp_zones.yaml")["zones"]
    return zones


def _read(file: str) -> dict[str, Any]:
    read: dict[str, Any] = load_own((_CATALOG / file).read_text())
    return read
