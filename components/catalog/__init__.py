"""Facts about machines, fabrics and images, each with its source: data files beside this one, and their reader."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.errors import CatalogError

_FOLDER = Path(__file__).parent


class Fact(BaseModel):
    """A row of the catalog. `source` says who stated it, `dated` when it was read (ISO date)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    dated: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


_Row = TypeVar("_Row", bound=Fact)

Count = Literal["vcpus", "gpus"] | Annotated[int, Field(ge=1)]
"""What a quota counts of a machine: its vCPUs, its GPUs, or a number."""


class Price(Fact):
    """List price of one machine for one hour in one region; None where nobody's list had it."""

    usd_per_hour: float | None = Field(gt=0)
    region: str


class Machine(Fact):
    """A machine type of one provider. Memory in MiB; `busbw_floor` in GB/s, None where nobody published one."""

    provider: str
    vcpus: int = Field(ge=1)
    memory_mib: int = Field(ge=512)
    gpus: int = Field(ge=0)
    gpu_type: str | None = None
    gpu_device: str | None = None
    """Prefix of the GPUs' device files; '/dev/nvidia' on real ones."""
    fabric: str
    busbw_floor: float | None = None
    rdma: int = Field(default=0, ge=0)
    """How many RDMA devices a node must show before collectives may use its fabric."""
    quotas: dict[str, Count] = {}
    """What one machine takes of which quota; `spot_quotas` if it is bought as Spot."""
    spot_quotas: dict[str, Count] = {}
    unverified: tuple[str, ...] = ()
    """Fields that no published page or code confirmed."""
    usd_per_hour: float | None = None
    """Of prices.yaml; None where that has none."""

    @property
    def schedulable_memory_mib(self) -> int:
        """Memory that Slurm may hand out: a node that reports less than its RealMemory is drained, so the kernel's
        and the daemons' share is left out (5 %, at least 1 GiB, but never more than a quarter of a tiny machine)."""
        reserve = max(self.memory_mib // 20, min(1024, self.memory_mib // 4))
        return self.memory_mib - reserve


class Fabric(Fact):
    """A kind of network between nodes and the environment that collective libraries need on it."""

    env: dict[str, str]


class Image(Fact):
    """An operating system image and the versions that decide how it is configured."""

    os: str
    slurm_version: tuple[int, int]
    reference: str | None = None
    """What the cloud calls it, with its version; None where the platform makes it."""
    versions: dict[str, str] = {}
    """What is pinned with it, by name; driver and fabric_manager must be one version, or GPUs behind NVSwitch fail."""
    cloud_config: dict[str, Any] = {}
    """Cloud-config that the image's own agents need on every node; joined to cloud-init/base.yaml."""


class ImageContract(Fact):
    """What an image's published build leaves on a machine before its first boot, as far as stages depend on it."""

    files: dict[str, str] = {}
    """Text of files, or the part of it that matters, by path."""
    removed: tuple[str, ...] = ()
    """Paths or patterns of files that the build deletes."""
    services: dict[str, Literal["enabled", "disabled", "masked"]] = {}
    modules: dict[str, str] = {}
    """Commands that are not on PATH, and the environment module that puts them there."""
    no_packages: tuple[str, ...] = ()
    """Packages that the archive of the image's distribution does not have."""


class Conflict(Fact):
    """Versions, by name, that break something when they come together; `consequence` says what."""

    versions: dict[str, str] = Field(min_length=1)
    consequence: str


def _read(file: str) -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = yaml.safe_load((_FOLDER / file).read_text())
    return read


def _rows(file: str, raw: dict[str, dict[str, Any]], kind: type[_Row], **common: str) -> dict[str, _Row]:
    try:
        return {name: kind(name=name, **common, **row) for name, row in raw.items()}
    except (ValidationError, TypeError) as error:
        raise CatalogError(f"components/catalog/{file}: {error}") from error


@cache
def machines(provider: str) -> dict[str, Machine]:
    """Return the provider's machine types by name, priced."""
    file = f"machines/{provider}.yaml"
    rows, known = _read(file), prices(provider)
    priced = {name: row | {"usd_per_hour": known[name].usd_per_hour} for name, row in rows.items() if name in known}
    return _rows(file, rows | priced, Machine, provider=provider)


@cache
def prices(provider: str) -> dict[str, Price]:
    """Return the provider's list prices by machine type."""
    return _rows("prices.yaml", _read("prices.yaml").get(provider, {}), Price)


@cache
def fabrics() -> dict[str, Fabric]:
    """Return the known fabrics by name."""
    return _rows("fabrics.yaml", _read("fabrics.yaml"), Fabric)


@cache
def images() -> dict[str, Image]:
    """Return the known images by name."""
    return _rows("images.yaml", _read("images.yaml"), Image)


@cache
def image_contracts() -> dict[str, ImageContract]:
    """Return what is known of the pinned images' builds, by the image's name."""
    return _rows("image_contracts.yaml", _read("image_contracts.yaml"), ImageContract)


@cache
def conflicts() -> dict[str, Conflict]:
    """Return the versions that are known to break one another."""
    return _rows("conflicts.yaml", _read("conflicts.yaml"), Conflict)
