"""Facts about machines, fabrics and images: models, and functions that read the YAML files in this folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainyard.errors import CatalogError
from trainyard.strict_yaml import load_own


class Fact(BaseModel):
    """A row in the catalog. `source` is the publication, and `dated` is the ISO date on which it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    dated: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


HOURS_PER_MONTH = 730
"""Number of hours per month in the price lists of both clouds."""

_MIB_PER_MB = 1e6 / 2**20


class Throughput(Fact):
    """Write throughput of shared storage, or of the disks of a machine type.

    The fields are described in throughput.yaml.
    """

    mb_s_of_size: dict[int, float] = Field(default_factory=dict)
    mib_s: float = Field(default=0, ge=0)
    mib_s_per_gib: float = Field(default=0, ge=0)
    most_mib_s: float | None = Field(default=None, gt=0)
    most_mb_s: float | None = Field(default=None, gt=0)

    def write_mib_s(self, size_gib: int) -> float:
        """Return the maximum write throughput in MiB/s for a size, or infinity if there is no limit."""
        if self.mb_s_of_size:
            rate = _of_size(self.mb_s_of_size, size_gib)
            base = float("inf") if rate is None else rate * _MIB_PER_MB
        else:
            base = self.mib_s + self.mib_s_per_gib * size_gib or float("inf")
        limits = [self.most_mib_s, None if self.most_mb_s is None else self.most_mb_s * _MIB_PER_MB]
        return min(base, *(limit for limit in limits if limit is not None), float("inf"))


class ServicePrice(Fact):
    """List price of shared storage or a gateway in one region. If the price is unknown, all price fields are unset."""

    region: str
    priced: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")
    """Date on which the price was valid, or empty if the price is unknown."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    usd_per_gib_hour: float | None = Field(default=None, gt=0)
    usd_per_month_of_size: dict[int, float | None] = Field(default_factory=dict)
    """Dollars per month for each size in GiB, or None if unknown."""
    billed_gib: int = Field(default=1, ge=1)

    def usd(self, size_gib: int) -> float | None:
        """Return the price in dollars per hour for a size, or None if the price is unknown."""
        if self.usd_per_month_of_size:
            month = _of_size(self.usd_per_month_of_size, size_gib)
            return None if month is None else month / HOURS_PER_MONTH
        if self.usd_per_gib_hour is not None:
            return -(-size_gib // self.billed_gib) * self.billed_gib * self.usd_per_gib_hour
        return self.usd_per_hour


def _of_size(values: Mapping[int, float | None] | Mapping[int, float], size_gib: int) -> float | None:
    """Return the value for the smallest size that is at least `size_gib`, or None if no such size or value exists."""
    return next((value for size, value in sorted(values.items()) if size >= size_gib), None)


NUMA_AS_SOCKET_SINCE = (22, 5)
"""First Slurm version with SlurmdParameters=numa_node_as_socket (SchedMD/slurm, NEWS for 22.05)."""

SlurmVersion = tuple[int, int]


class Topology(Fact):
    """Sockets, cores and threads as printed by lscpu. `gpu_numa` contains the NUMA node of each GPU, or is empty."""

    sockets: int = Field(ge=1)
    cores_per_socket: int = Field(ge=1)
    threads_per_core: int = Field(ge=1, le=2)
    numa_per_socket: int = Field(default=1, ge=1)
    gpu_numa: tuple[int, ...] = ()
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values are not stated in any published page or code."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cores_per_socket % self.numa_per_socket:
            raise ValueError("all NUMA nodes in a socket must have the same number of cores")
        if any(not 0 <= node < self.sockets * self.numa_per_socket for node in self.gpu_numa):
            raise ValueError("gpu_numa contains a NUMA node that does not exist")
        return self

    @property
    def vcpus(self) -> int:
        """Number of hardware threads."""
        return self.sockets * self.cores_per_socket * self.threads_per_core

    def needs_numa_as_socket(self, version: SlurmVersion) -> bool:
        """Return whether slurmd needs numa_node_as_socket. Slurm assigns GPUs to sockets, not to NUMA nodes."""
        return self.numa_per_socket > 1 and version >= NUMA_AS_SOCKET_SINCE

    def slurm_sockets(self, version: SlurmVersion) -> tuple[int, int]:
        """Return Sockets and CoresPerSocket for slurm.conf."""
        split = self.numa_per_socket if self.needs_numa_as_socket(version) else 1
        return self.sockets * split, self.cores_per_socket // split

    def gpu_cores(self, version: SlurmVersion) -> tuple[tuple[int, int], ...]:
        """Return the first and last core near each GPU.

        The result is empty if the affinity is unknown, or if Slurm uses only one socket. A GPU gets all cores in its
        socket, because "all the cores in a socket must be specified together" (gres.conf manual).
        """
        sockets, cores = self.slurm_sockets(version)
        if sockets == 1:
            return ()
        numa_per_slurm_socket = self.sockets * self.numa_per_socket // sockets
        firsts = [node // numa_per_slurm_socket * cores for node in self.gpu_numa]
        return tuple((first, first + cores - 1) for first in firsts)


_WORD = r"^[A-Za-z0-9][A-Za-z0-9.+~:-]*$"

_OLDEST_DRIVER = {12: 525, 13: 580}
"""Branch of the oldest supported driver for each major CUDA release.

NVIDIA, "CUDA Compatibility", minor version compatibility, table 1, read 2026-11-22.
"""


class _Part(BaseModel):
    """Base class for the parts of a lock."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Package(_Part):
    """A locked package. `sha256` is the digest of its file, or None if the file could not be read."""

    version: Annotated[str, Field(pattern=_WORD[:-1] + r"\*?$")]
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None


class AptArchive(_Part):
    """An apt archive.

    `key` is the path on the node or the URL of the signing key. `suite` is the suite and the components, as in
    sources.list(5). `url` is None for the distribution's archive, whose address is read from the node's apt sources.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    key: str
    fingerprint: str = "-"
    url: str | None = None
    suite: str


class DriverLock(Fact):
    """Compatible versions for one operating system. The name of the row is the name of the operating system."""

    versions: dict[str, str]
    """Versions by name, as in images.yaml. Every row contains `driver`."""
    module: str = "nvidia"
    """File name of the kernel module, without .ko."""
    archives: tuple[AptArchive, ...] = Field(min_length=1)
    packages: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(min_length=1)
    nvswitch: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages for nodes with NVSwitch. If empty, such nodes are not supported."""
    optional: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages that are skipped with a warning if the archive does not contain them."""
    files: dict[str, str] = Field(default_factory=dict)
    """Content of configuration files that the installation needs, by absolute path."""
    refused_gpus: dict[str, str] = Field(default_factory=dict)
    """GPU types that this driver does not support, with the reason."""
    unverified: tuple[str, ...] = ()
    """Facts that were not verified in the archive."""

    @property
    def driver(self) -> str:
        """The driver version without the package revision."""
        return self.versions["driver"]


class Archive(Fact):
    """A package archive for which a mirror can be set. `url` is an extended regular expression.

    `distribution` is true if the node's own apt sources contain the archive.
    """

    url: str
    distribution: bool = False


class Conflict(Fact):
    """Incompatible versions by name. `consequence` states what fails in an image with all these versions."""

    versions: dict[str, str] = Field(min_length=1)
    consequence: str


def incompatible(versions: Mapping[str, str], known: Mapping[str, Conflict]) -> Iterator[str]:
    """Yield the incompatible versions in an image or a lock, with the consequence.

    `known` contains the rows from conflicts.yaml.
    """
    for conflict in known.values():
        if conflict.versions.items() <= versions.items():
            named = ", ".join(f"{name} {version}" for name, version in conflict.versions.items())
            yield f"{named}: {conflict.consequence}"
    driver = versions.get("driver")
    if driver is None:
        return
    for name, title in (("fabric_manager", "fabric manager"), ("nscq", "NSCQ")):
        if versions.get(name, driver) != driver:
            yield f"driver {driver} and {title} {versions[name]}: GPUs with NVSwitch need equal versions"
    cuda = versions.get("cuda")
    oldest = _OLDEST_DRIVER.get(_major(cuda)) if cuda else None
    if oldest is not None and _major(driver) < oldest:
        yield f"driver {driver} and CUDA {cuda}: this release of CUDA needs driver {oldest} or later"
    built_for = re.search(r"\+cuda(.+)$", versions.get("nccl", ""))
    if cuda and built_for and _major(built_for[1]) > _major(cuda):
        yield f"CUDA {cuda} and NCCL for CUDA {built_for[1]}: NCCL needs the same or an older release of CUDA"


def _major(version: str) -> int:
    return int(version.partition(".")[0])


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
