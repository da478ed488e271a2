"""Facts about machine sizes that only the Azure platform uses."""

from __future__ import annotations

from functools import cache

from components.catalog import Fact, read_rows
from trainyard.errors import CatalogError


class Size(Fact):
    """A machine size."""

    accelerated: bool
    """Whether the size supports accelerated networking."""
    reservable: bool
    """Whether Azure supports capacity reservations for the size."""
    largest_fabric: int | None = None
    """Maximum number of machines in one InfiniBand fabric, or None if the size has no InfiniBand."""
    with_fabric: str | None = None
    """Name of the size variant with InfiniBand, or None if no such variant exists."""
    stock_image: bool = True
    """Whether the pinned image contains drivers for the size's GPUs."""
    retired: str | None = None
    """The date on which Azure retired the size."""
    unverified: tuple[str, ...] = ()
    """Names of fields without a public source."""


@cache
def sizes() -> dict[str, Size]:
    """Return the sizes in the catalog by name. Raises CatalogError if the file does not match its model."""
    return read_rows("azure_sizes.yaml", Size)


def size_of(machine: str) -> Size:
    """Return the size of a machine type. Raises CatalogError if the catalog does not contain the size."""
    size = sizes().get(machine)
    if size is None:
        raise CatalogError(f"components/catalog/azure_sizes.yaml has no size {machine}; add it")
    return size
