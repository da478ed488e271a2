"""Facts about machine families that only the Google Cloud platform uses."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from components.catalog import Fact, read_rows
from trainyard.errors import CatalogError


class Nics(BaseModel):
    """Number of network interfaces on each machine, by type."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gvnic: Annotated[int, Field(ge=1)]
    rdma: Annotated[int, Field(ge=0)]


class Family(Fact):
    """A machine family."""

    nics: Nics
    mtu: int
    boot_disks: tuple[str, ...]
    """Supported boot disk types. The first type is the default."""
    compact: bool
    """Whether the family supports compact placement policies."""
    zones: tuple[str, ...] = ()
    """Zones that offer the family. Empty if no source lists them."""
    tier_1_from_vcpus: int | None = None
    """Minimum number of vCPUs for Tier_1 networking, or None if the family does not support Tier_1."""
    dense_reservations: bool = False
    """Whether reservations are dense: their machines are always close together and cannot have a different
    placement."""
    on_demand_seen: bool = True
    """Whether a deployment example from Google uses the family on demand."""
    stock_image: bool = True
    """Whether the pinned image supports the fabric. Otherwise, the stack needs a custom image."""
    unverified: tuple[str, ...] = ()
    """Names of fields without a public source."""


@cache
def families() -> dict[str, Family]:
    """Return the families in the catalog by name. Raises CatalogError if the file does not match its model."""
    return read_rows("gcp_families.yaml", Family)


def family_of(machine: str) -> Family:
    """Return the family of a machine type, for example "a3-megagpu" for "a3-megagpu-8g".

    Raises CatalogError if the catalog does not contain the family.
    """
    family = families().get(machine.rpartition("-")[0])
    if family is None:
        raise CatalogError(f"components/catalog/gcp_families.yaml has no family for the machine type {machine}; add it")
    return family
