"""Azure's regions, and where Microsoft sells a machine type. Facts of components/catalog/azure_regions.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.errors import CatalogError, RuleError
from components.explain import nearest

_FILE = Path(__file__).parents[2] / "catalog" / "azure_regions.yaml"
_Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    listed: _Date
    """The date of the source's own data."""
    dated: _Date
    """The date on which the source was read."""


class Regions(_Facts):
    """Names of all public regions."""

    with_zones: frozenset[str]
    without_zones: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """All regions, sorted."""
        return tuple(sorted(self.with_zones | self.without_zones))


class RegionFacts(_Facts):
    """Regions, and the regions with a price for a machine type; `everywhere` lists types with a price in all."""

    regions: Regions
    everywhere: frozenset[str]
    machines: dict[str, tuple[str, ...]]


@cache
def region_facts() -> RegionFacts:
    """Return the recorded regions. Raises CatalogError if the file contradicts its model."""
    try:
        return RegionFacts.model_validate(yaml.safe_load(_FILE.read_text()))
    except ValidationError as error:
        raise CatalogError(f"components/catalog/{_FILE.name}: {error}") from error


def known_region(name: str) -> str:
    """Return the name of a region. Raises RuleError for a region that Azure does not have."""
    regions = region_facts().regions
    if name in regions.names:
        return name
    meant = nearest(name, regions.names)
    fix = f"write {meant}" if meant else "use a name that `az account list-locations --query [].name` prints"
    raise RuleError(f"must be a region of Azure (list of {regions.listed})", fix)


def sold_in(machine: str) -> tuple[str, ...] | None:
    """Return the regions in which a machine type has a price, or None if it has one in every region."""
    return region_facts().machines.get(machine)
