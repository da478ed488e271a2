"""What GCP machine families need: cards, disks, ways to be bought. Facts of components/catalog/gcp_families.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.catalog import Fact
from components.errors import CatalogError

_FILE = Path(__file__).parents[2] / "catalog" / "gcp_families.yaml"


class Nics(BaseModel):
    """Network cards of every machine of a family."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gvnic: Annotated[int, Field(ge=1)]
    rdma: Annotated[int, Field(ge=0)]


class Family(Fact):
    """A machine family. `unverified` names the fields that no published code or page confirmed."""

    nics: Nics
    mtu: int
    boot_disks: tuple[str, ...]
    """Types that it boots from; the first is used unless the stack names one."""
    compact: bool
    """Whether a compact placement policy may hold it."""
    zones: tuple[str, ...] = ()
    """Where it was seen on offer; empty: not recorded, so nothing is said of any zone."""
    tier_1_from_vcpus: int | None = None
    """The smallest shape that takes Tier_1 networking; None where the bandwidth comes with the machine."""
    dense_reservations: bool = False
    """Whether its reservations are dense ones: bound to them and placed together already."""
    on_demand_seen: bool = True
    """Whether a published example of Google's buys it on demand."""
    stock_image: bool = True
    """Whether the pinned image has what its fabric needs; False: a custom image must bring it."""
    unverified: tuple[str, ...] = ()


@cache
def families() -> dict[str, Family]:
    """Return the known families by name. Raises CatalogError where the file contradicts its model."""
    raw: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text())
    try:
        return {name: Family(name=name, **row) for name, row in raw.items()}
    except (ValidationError, TypeError) as error:
        raise CatalogError(f"components/catalog/{_FILE.name}: {error}") from error


def family_of(machine: str) -> Family:
    """Return the family of a machine type ("a3-megagpu-8g"). Raises CatalogError for one that is not recorded."""
    family = families().get(machine.rpartition("-")[0])
    if family is None:
        raise CatalogError(f"components/catalog/{_FILE.name} has no family for the machine type {machine}; add it")
    return family
