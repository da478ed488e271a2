"""Facts about machines, fabrics and images, each with its source: data files beside this one, and their reader."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from components.catalog.fact import Fact as Fact  # re-exported
from components.catalog.services import ServicePrice, Throughput
from components.catalog.topology import Topology
from components.errors import CatalogError

_FOLDER = Path(__file__).parent


_Row = TypeVar("_Row", bound=Fact)

Count = Literal["vcpus", "gpus"] | Annotated[int, Field(ge=1)]
"""What a quota counts of a machine: its vCPUs, its GPUs, or a number."""


class Price(Fact):
    """List price of one machine for one hour in one region; None if no list has it."""

    usd_per_hour: float | None = Field(gt=0)
    """On demand."""
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    region: str


class Floors(Fact):
    """All-reduce bus bandwidth in GB/s below which a machine type has a fault; None if no threshold is published.

    `node` is for the GPUs of one node, `pair` for two or more nodes.
    """

    node: float | None = Field(default=None, gt=0)
    pair: float | None = Field(default=None, gt=0)


class Machine(Fact):
    """A machine type of one provider. Memory in MiB."""

    provider: str
    vcpus: int = Field(ge=1)
    memory_mib: int = Field(ge=512)
    gpus: int = Field(ge=0)
    gpu_type: str | None = None
    gpu_device: str | None = None
    """Prefix of the GPUs' device files; '/dev/nvidia' on real ones."""
    fabric: str
    topology: Topology | None = None
    """From topologies.yaml; None if no source gives it."""
    floors: Floors | None = None
    """From floors.yaml; None if no source gives any."""
    rdma: int = Field(default=0, ge=0)
    """How many RDMA devices a node must show before collectives may use its fabric."""
    rdma_devices: tuple[str, ...] = ()
    """Their names, where not every device that is up is for collectives."""
    quotas: dict[str, Count] = Field(default_factory=dict)
    """What one machine takes of which quota; `spot_quotas` if it is bought as Spot."""
    spot_quotas: dict[str, Count] = Field(default_factory=dict)
    unverified: tuple[str, ...] = ()
    """Fields that no published page or code confirmed."""
    usd_per_hour: float | None = None
    """On demand, from prices.yaml; None if it has none."""
    spot_usd_per_hour: float | None = None

    @model_validator(mode="after")
    def _agrees_with_its_topology(self) -> Self:
        if self.topology is None:
            return self
        if self.topology.vcpus != self.vcpus:
            raise ValueError(f"{self.name} has {self.vcpus} vCPUs, and its topology has {self.topology.vcpus}")
        if self.topology.gpu_numa and len(self.topology.gpu_numa) != self.gpus:
            raise ValueError(f"{self.name} has {self.gpus} GPUs, and its topology has {len(self.topology.gpu_numa)}")
        return self

    @property
    def gpu_affinity_unknown(self) -> bool:
        """Whether no source states which cores are near which of the machine's real GPUs."""
        if self.gpus < 2 or self.gpu_type == "fake":  # noqa: PLR2004  (one GPU has no other to differ from)
            return False
        known = self.topology
        return known is None or (not known.gpu_numa and known.sockets * known.numa_per_socket > 1)

    @property
    def schedulable_memory_mib(self) -> int:
        """Memory that Slurm may hand out: a node that reports less than its RealMemory is drained, so the kernel's
        and the daemons' share is left out (5 %, at least 1 GiB, but never more than a quarter of a tiny machine)."""
        reserve = max(self.memory_mib // 20, min(1024, self.memory_mib // 4))
        return self.memory_mib - reserve


class Fabric(Fact):
    """A kind of network between nodes, the environment of its collective libraries, and the files that jobs need.

    `library_path`: the folder of the NCCL plugin on the node, which a job puts first in LD_LIBRARY_PATH.
    `mounts`: paths of the node that a job's container must have under the same name; ':ro' after it if read-only.
    """

    env: dict[str, str]
    library_path: str | None = Field(default=None, pattern=r"^/[\w./-]+$")
    mounts: tuple[Annotated[str, Field(pattern=r"^/[\w./-]+(:ro)?$")], ...] = ()


class Image(Fact):
    """An operating system image and the versions that decide how it is configured."""

    os: str
    slurm_version: tuple[int, int]
    reference: str | None = None
    """What the cloud calls it, with its version; None where the platform makes it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """What is pinned with it, by name; driver and fabric_manager must be one version, or GPUs behind NVSwitch fail."""
    cloud_config: dict[str, Any] = Field(default_factory=dict)
    """Cloud-config that the image's own agents need on every node; joined to cloud-init/base.yaml."""


class ImageContract(Fact):
    """What an image's published build leaves on a machine before its first boot, as far as stages depend on it."""

    files: dict[str, str] = Field(default_factory=dict)
    """Text of files, or the part of it that matters, by path."""
    removed: tuple[str, ...] = ()
    """Paths or patterns of files that the build deletes."""
    services: dict[str, Literal["enabled", "disabled", "masked"]] = Field(default_factory=dict)
    modules: dict[str, str] = Field(default_factory=dict)
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
    """Return the provider's machine types by name, with price, topology and floors. Raises CatalogError."""
    file = f"machines/{provider}.yaml"
    topology, floor, price = topologies(provider), floors(provider), prices(provider)
    rows = {
        name: row
        | {"topology": topology.get(name), "floors": floor.get(name)}
        | {field: getattr(price.get(name), field, None) for field in ("usd_per_hour", "spot_usd_per_hour")}
        for name, row in _read(file).items()
    }
    return _rows(file, rows, Machine, provider=provider)


@cache
def topologies(provider: str) -> dict[str, Topology]:
    """Return the provider's processor topologies by machine type."""
    return _rows("topologies.yaml", _read("topologies.yaml").get(provider, {}), Topology)


@cache
def floors(provider: str) -> dict[str, Floors]:
    """Return the provider's bandwidth floors by machine type."""
    return _rows("floors.yaml", _read("floors.yaml").get(provider, {}), Floors)


@cache
def prices(provider: str) -> dict[str, Price]:
    """Return the provider's list prices by machine type."""
    return _rows("prices.yaml", _read("prices.yaml").get(provider, {}), Price)


@cache
def throughputs(provider: str) -> dict[str, Throughput]:
    """Return the write throughput of the provider's storages, and of the disks of machine types, by name."""
    return _rows("throughput.yaml", _read("throughput.yaml").get(provider, {}), Throughput)


@cache
def service_prices(provider: str) -> dict[str, ServicePrice]:
    """Return the list prices of the provider's storages and gateways by name."""
    return _rows("service_prices.yaml", _read("service_prices.yaml").get(provider, {}), ServicePrice)


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
    """Return the facts of the pinned images' builds by image name. Tests compare the stages with them."""
    return _rows("image_contracts.yaml", _read("image_contracts.yaml"), ImageContract)


@cache
def conflicts() -> dict[str, Conflict]:
    """Return the versions that are known to break one another."""
    return _rows("conflicts.yaml", _read("conflicts.yaml"), Conflict)
