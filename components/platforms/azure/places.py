"""Azure regions, and for each machine type the regions with a known price."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from pydantic import ValidationInfo

from components.platforms.listing import Listing, read_listing
from components.spec.explain import nearest
from components.spec.model import used_machines
from trainyard.errors import RuleError


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


def regions_with(names: Iterable[str]) -> tuple[str, ...]:
    """Return the regions with a price for all of the machine types. Unknown types are ignored.

    If no region has a price for all of them, return all regions.
    """
    facts = region_facts()
    lists = [facts.machines[name] for name in names if name in facts.machines]
    found = [region for region in facts.regions.names if all(region in regions for regions in lists)]
    return tuple(found) or facts.regions.names


def known_region(name: str, info: ValidationInfo) -> str:
    """Return `name` if it is an Azure region. Otherwise, raise RuleError and suggest a region with the stack's machine
    types."""
    regions = region_facts().regions
    if name in regions.names:
        return name
    usable = regions_with(used_machines(info))
    if meant := nearest(name, usable):
        fix = f"write {meant}"
    elif len(usable) < len(regions.names):
        fix = f"use one of {', '.join(usable)}"
    else:
        fix = "use a name that `az account list-locations --query [].name` prints"
    raise RuleError(f"must be an Azure region (list of {regions.listed})", fix)
