"""What Azure's sizes allow beside what every machine type has. Facts of components/catalog/azure_sizes.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from components.catalog import Fact
from components.errors import CatalogError

_FILE = Path(__file__).parents[2] / "catalog" / "azure_sizes.yaml"


class Size(Fact):
    """A size. `unverified` names the fields that no published page or code confirmed."""

    accelerated: bool
    """Whether its network cards take accelerated networking."""
    reservable: bool
    """Whether a capacity reservation may hold it."""
    largest_fabric: int | None = None
    """Machines that one container joins over InfiniBand; None: the size has none."""
    with_fabric: str | None = None
    """The size that is like it but for InfiniBand: one letter in the name."""
    stock_image: bool = True
    """Whether the pinned image drives its GPUs."""
    retired: str | None = None
    """The day from which Azure makes none any more."""
    unverified: tuple[str, ...] = ()


@cache
def sizes() -> dict[str, Size]:
    """Return the known sizes by name. Raises CatalogError where the file contradicts its model."""
    raw: dict[str, dict[str, Any]] = yaml.safe_load(_FILE.read_text())
    try:
        return {name: Size(name=name, **row) for name, row in raw.items()}
    except (ValidationError, TypeError) as error:
        raise CatalogError(f"components/catalog/{_FILE.name}: {error}") from error


def size_of(machine: str) -> Size:
    """Return a machine type's size. Raises CatalogError for one that is not recorded."""
    size = sizes().get(machine)
    if size is None:
        raise CatalogError(f"components/catalog/{_FILE.name} has no size {machine}; add it")
    return size
