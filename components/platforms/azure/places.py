"""Azure regions, and for each machine type the regions with a known price."""

from __future__ import annotations

from functools import cache

from components.platforms.listing import Listing, read_listing
from components.stackfile.explain import nearest
from yard.contract.errors import RuleError


class Regions(Listing):
    """Names of all public regions."""

    with_zones: frozenset[str]
    without_zones: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all regions, sorted."""
        return tuple(sorted(self.with_zones | self.without_zones))


class RegionFacts(Listing):
    """All regions, and for each machine type the regions with a known price."""

    regions: Regions
    everywhere: frozenset[str]
    """Machine types with a price in all regions."""
    machines: dict[str, tuple[str, ...]]
    """For each other machine type, the regions in which it has a price."""


@cache
def region_facts() -> RegionFacts:
    """Return the regions in the catalog. Raises CatalogError if the file does not match its model."""
    return read_listing("azure_regions.yaml", RegionFacts)


def known_region(name: str) -> str:
    """Return `name` if it is an Azure region. Raises RuleError otherwise."""
    regions = region_facts().regions
    if name in regions.names:
        return name
    meant = nearest(name, regions.names)
    fix = f"write {meant}" if meant else "use a name that `az account list-locations --query [].name` prints"
    raise RuleError(f"must be an Azure region (list of {regions.listed})", fix)
