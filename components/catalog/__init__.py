"""Facts about machines, fabrics and images: models, and functions that read the YAML files in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from components.catalog.drivers import Archive, Conflict, DriverLock
from components.catalog.fact import Fact as Fact  # re-exported
from components.catalog.services import ServicePrice, Throughput
from components.catalog.topology import Topology
from trainyard.errors import CatalogError
from trainyard.strict_yaml import load_own

_FOLDER = Path(__file__).parent
_Row = TypeVar("_Row", bound=Fact)

Count = Literal["vcpus", "gpus"] | Annotated[int, Field(ge=1)]
"""How much of a quota a machine uses: the number of its vCPUs or GPUs, or a fixed number."""


class Price(Fact):
    """List prices of a machine in dollars per hour in one region, or None if unknown."""

    usd_per_hour: float | None = Field(gt=0)
    """On-demand price."""
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    """Spot price on the date in `spot_source`. Spot prices can change at any time."""
    spot_source: str = ""
    """Dated source of the Spot price, or empty if it is unknown."""
    region: str

    @model_validator(mode="after")
    def _check_spot_source(self) -> Self:
        if (self.spot_usd_per_hour is None) != (not self.spot_source):
            raise ValueError(f"{self.name} must have both spot_usd_per_hour and spot_source, or neither")
        return self


class Floors(Fact):
    """Published minimum all-reduce bus bandwidth, in GB/s, of a machine without faults.

    `node` applies within one node, and `pair` between two or more nodes. A value is None if no minimum is published.
    `node_gib` and `pair_gib` are the message sizes at which the values apply.
    """

    node: float | None = Field(default=None, gt=0)
    node_gib: int | None = Field(default=None, gt=0)
    pair: float | None = Field(default=None, gt=0)
    pair_gib: int | None = Field(default=None, gt=0)


class Machine(Fact):
    """A machine type offered by a provider."""

    provider: str
    vcpus: int = Field(ge=1)
    memory_mib: int = Field(ge=512)
    gpus: int = Field(ge=0)
    gpu_type: str | None = None
    gpu_device: str | None = None
    """Prefix of the GPU device files: '/dev/nvidia' for real GPUs."""
    fabric: str
    topology: Topology | None = None
    """From topologies.yaml, or None if no source states the topology."""
    floors: Floors | None = None
    """From floors.yaml, or None if no source states the floors."""
    rdma: int = Field(default=0, ge=0)
    """Number of RDMA devices that must be present on a node before collectives can use its fabric."""
    rdma_devices: tuple[str, ...] = ()
    """Names of the RDMA devices for collectives. If empty, all active devices are used."""
    quotas: dict[str, Count] = Field(default_factory=dict)
    """How much of each quota one machine uses. A Spot machine uses `spot_quotas` instead."""
    spot_quotas: dict[str, Count] = Field(default_factory=dict)
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values are not stated in any published page or code."""
    usd_per_hour: float | None = None
    """On-demand price from prices.yaml, or None if unknown."""
    spot_usd_per_hour: float | None = None

    @model_validator(mode="after")
    def _check_topology(self) -> Self:
        if self.topology is None:
            return self
        if self.topology.vcpus != self.vcpus:
            raise ValueError(f"{self.name} has {self.vcpus} vCPUs, and its topology has {self.topology.vcpus}")
        if self.topology.gpu_numa and len(self.topology.gpu_numa) != self.gpus:
            raise ValueError(f"{self.name} has {self.gpus} GPUs, and its topology has {len(self.topology.gpu_numa)}")
        return self

    @property
    def gpu_affinity_unknown(self) -> bool:
        """Whether the cores near each GPU are unknown. It is false for fake GPUs."""
        if self.gpus < 2 or self.gpu_type == "fake":  # noqa: PLR2004  (affinity differs only between GPUs)
            return False
        known = self.topology
        return known is None or (not known.gpu_numa and known.sockets * known.numa_per_socket > 1)

    @property
    def has_nvidia_gpus(self) -> bool:
        """Whether the machine has GPUs that need the NVIDIA driver. It is false for fake GPUs."""
        return self.gpus > 0 and self.gpu_type != "fake"

    def without_gpus(self) -> Machine:
        """Return a copy without GPUs, for jobs that use no GPUs. The prices and the amount of each quota are kept."""
        counts = {"gpus": self.gpus}
        quotas, spot_quotas = (
            {name: counts.get(str(count), count) for name, count in known.items()}
            for known in (self.quotas, self.spot_quotas)
        )
        topology = self.topology.model_copy(update={"gpu_numa": ()}) if self.topology else None
        none = {"gpus": 0, "gpu_type": None, "gpu_device": None, "topology": topology, "floors": None}
        return self.model_copy(update=none | {"quotas": quotas, "spot_quotas": spot_quotas})

    @property
    def schedulable_memory_mib(self) -> int:
        """Memory in MiB that Slurm can allocate to jobs.

        Slurm drains a node that has less memory than its RealMemory. Therefore 5 % of the memory is reserved for the
        kernel and the daemons. The reserve is at least 1 GiB, but at most a quarter of the memory.
        """
        reserve = max(self.memory_mib // 20, min(1024, self.memory_mib // 4))
        return self.memory_mib - reserve


class Fabric(Fact):
    """A type of network between nodes, with the environment variables and files that collective libraries need."""

    env: dict[str, str]
    library_path: str | None = Field(default=None, pattern=r"^/[\w./-]+$")
    """Folder of the NCCL plugin on the node. The folder comes first in the LD_LIBRARY_PATH of jobs."""
    mounts: tuple[Annotated[str, Field(pattern=r"^/[\w./-]+(:ro)?$")], ...] = ()
    """Paths on the node that are mounted at the same paths in containers. The suffix ':ro' makes a mount read-only."""


class Image(Fact):
    """An operating system image and the versions of the software in it."""

    os: str
    slurm_version: tuple[int, int]
    reference: str | None = None
    """Name of the image in the cloud with its version, or None if it is not a cloud image."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Pinned versions by name. For GPUs with NVSwitch, `driver` and `fabric_manager` must be equal."""
    cloud_config: dict[str, Any] = Field(default_factory=dict)
    """Cloud-config for the agents in the image. It is merged with cloud-init/base.yaml."""


class ImageContract(Fact):
    """State of a published image before its first boot. It contains the facts that bootstrap stages depend on."""

    files: dict[str, str] = Field(default_factory=dict)
    """File contents by path."""
    removed: tuple[str, ...] = ()
    """Paths or patterns of deleted files."""
    services: dict[str, Literal["enabled", "disabled", "masked"]] = Field(default_factory=dict)
    modules: dict[str, str] = Field(default_factory=dict)
    """The environment module that adds a command to PATH, by command."""
    no_packages: tuple[str, ...] = ()
    """Packages that are missing from the distribution's archive."""


def _read(file: str) -> dict[str, dict[str, Any]]:
    raw: dict[str, dict[str, Any]] = load_own((_FOLDER / file).read_text())
    return raw


def _rows(file: str, raw: dict[str, dict[str, Any]], model: type[_Row], **common: str) -> dict[str, _Row]:
    try:
        return {name: model(name=name, **common, **row) for name, row in raw.items()}
    except (ValidationError, TypeError) as error:
        raise CatalogError(f"components/catalog/{file}: {error}") from error


def read_rows(file: str, model: type[_Row]) -> dict[str, _Row]:
    """Return the rows of a catalog file by name. Raises CatalogError if the file does not match the model."""
    return _rows(file, _read(file), model)


@cache
def machines(provider: str) -> dict[str, Machine]:
    """Return the provider's machine types by name with prices, topologies and floors. Raises CatalogError."""
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
    """Return the write throughput of shared storage by kind, and of machine disks by machine type."""
    return _rows("throughput.yaml", _read("throughput.yaml").get(provider, {}), Throughput)


@cache
def service_prices(provider: str) -> dict[str, ServicePrice]:
    """Return the list prices for the provider's shared storage and gateways by name."""
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
    """Return the facts about pinned images by image name. Tests compare the bootstrap stages with these facts."""
    return _rows("image_contracts.yaml", _read("image_contracts.yaml"), ImageContract)


@cache
def conflicts() -> dict[str, Conflict]:
    """Return the known sets of incompatible versions."""
    return _rows("conflicts.yaml", _read("conflicts.yaml"), Conflict)


@cache
def driver_locks() -> dict[str, DriverLock]:
    """Return the version locks for the NVIDIA driver by operating system."""
    return _rows("drivers.yaml", _read("drivers.yaml"), DriverLock)


@cache
def archives() -> dict[str, Archive]:
    """Return the package archives for which a mirror can be set."""
    return _rows("archives.yaml", _read("archives.yaml"), Archive)
