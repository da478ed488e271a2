"""Facts about machines, fabrics and images: models, and functions that read the YAML files in this folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainyard.errors import CatalogError
from trainyard.strict_yaml import load_own


class Fact(BaseModel):
    """A row in the catalog. `source` is where the fact is published, and `dated` is when it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    dated: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


HOURS_PER_MONTH = 730
"""Hours per month in the price lists of both clouds."""

_MIB_PER_MB = 1e6 / 2**20


class Throughput(Fact):
    """Write throughput of shared storage or of a machine type's disks. throughput.yaml describes the fields."""

    mb_s_of_size: dict[int, float] = Field(default_factory=dict)
    mib_s: float = Field(default=0, ge=0)
    mib_s_per_gib: float = Field(default=0, ge=0)
    most_mib_s: float | None = Field(default=None, gt=0)
    most_mb_s: float | None = Field(default=None, gt=0)

    def write_mib_s(self, size_gib: int) -> float:
        """Return the maximum write throughput in MiB/s for `size_gib` GiB, or infinity if it is not limited."""
        if self.mb_s_of_size:
            rate = _of_size(self.mb_s_of_size, size_gib)
            base = float("inf") if rate is None else rate * _MIB_PER_MB
        else:
            base = self.mib_s + self.mib_s_per_gib * size_gib or float("inf")
        most_mb_s = float("inf") if self.most_mb_s is None else self.most_mb_s
        return min(base, self.most_mib_s or float("inf"), most_mb_s * _MIB_PER_MB)


class ServicePrice(Fact):
    """List price of a disk, an address, a gateway or shared storage in one region.

    If no price field is set, the price is unknown.
    """

    region: str
    priced: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")
    """The date on which the price was valid, or "" if the price is unknown."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    usd_per_gib_hour: float | None = Field(default=None, gt=0)
    usd_per_month_of_size: dict[int, float | None] = Field(default_factory=dict)
    """Mapping from size in GiB to dollars per month. A value is None if the price of that size is unknown."""
    usd_per_gb: float | None = Field(default=None, gt=0)
    """The price of traffic after the first `free_gb` of a month. No total includes it."""
    free_gb: int = Field(default=0, ge=0)
    billed_gib: int = Field(default=1, ge=1)
    most: int | None = Field(default=None, ge=1)
    """The maximum number that is billed, or None if all are billed."""

    def usd(self, size_gib: int, count: int = 1) -> float | None:
        """Return the price of `count` services of `size_gib` GiB in dollars per hour, or None if it is unknown."""
        each = self._each(size_gib)
        return None if each is None else each * min(count, self.most or count)

    def _each(self, size_gib: int) -> float | None:
        if self.usd_per_month_of_size:
            month = _of_size(self.usd_per_month_of_size, size_gib)
            return None if month is None else month / HOURS_PER_MONTH
        if self.usd_per_gib_hour is not None:
            return -(-size_gib // self.billed_gib) * self.billed_gib * self.usd_per_gib_hour
        return self.usd_per_hour


def _of_size(values: Mapping[int, float | None] | Mapping[int, float], size_gib: int) -> float | None:
    """Return the value for the smallest size that is at least `size_gib`, or None if all sizes are smaller."""
    return next((value for size, value in sorted(values.items()) if size >= size_gib), None)


NUMA_AS_SOCKET_SINCE = (22, 5)
"""The first Slurm version that supports SlurmdParameters=numa_node_as_socket (SchedMD/slurm, NEWS for 22.05)."""

SlurmVersion = tuple[int, int]


class Topology(Fact):
    """Sockets, cores and threads as lscpu prints them. `gpu_numa` lists the GPUs' NUMA nodes if they are known."""

    sockets: int = Field(ge=1)
    cores_per_socket: int = Field(ge=1)
    threads_per_core: int = Field(ge=1, le=2)
    numa_per_socket: int = Field(default=1, ge=1)
    gpu_numa: tuple[int, ...] = ()
    unverified: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cores_per_socket % self.numa_per_socket:
            raise ValueError("all NUMA nodes in a socket must have the same number of cores")
        if any(not 0 <= node < self.sockets * self.numa_per_socket for node in self.gpu_numa):
            raise ValueError("gpu_numa contains a NUMA node that does not exist")
        return self

    @property
    def vcpus(self) -> int:
        return self.sockets * self.cores_per_socket * self.threads_per_core

    def needs_numa_as_socket(self, version: SlurmVersion) -> bool:
        """Return whether `version` supports and needs numa_node_as_socket. Slurm assigns GPUs only to sockets."""
        return self.numa_per_socket > 1 and version >= NUMA_AS_SOCKET_SINCE

    def slurm_sockets(self, version: SlurmVersion) -> tuple[int, int]:
        """Return Sockets and CoresPerSocket for slurm.conf."""
        split = self.numa_per_socket if self.needs_numa_as_socket(version) else 1
        return self.sockets * split, self.cores_per_socket // split

    def gpu_cores(self, version: SlurmVersion) -> tuple[tuple[int, int], ...]:
        """Return the first and last core near each GPU, or () if they are unknown or Slurm uses only one socket.

        A GPU gets its whole socket, because "all the cores in a socket must be specified together" (gres.conf manual).
        """
        sockets, cores = self.slurm_sockets(version)
        if sockets == 1:
            return ()
        numa_per_slurm_socket = self.sockets * self.numa_per_socket // sockets
        firsts = [node // numa_per_slurm_socket * cores for node in self.gpu_numa]
        return tuple((first, first + cores - 1) for first in firsts)


_WORD = r"^[A-Za-z0-9][A-Za-z0-9.+~:-]*$"

_OLDEST_DRIVER = {12: 525, 13: 580}
"""The oldest driver branch that supports each major CUDA release (NVIDIA, "CUDA Compatibility", minor version
compatibility, table 1, read 2026-11-22)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Package(_Part):
    """A locked package. `sha256` is None if the package's file could not be read."""

    version: Annotated[str, Field(pattern=_WORD[:-1] + r"\*?$")]
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None


class AptArchive(_Part):
    """An apt archive. `url` is None for the distribution's archive, whose address is in the node's apt sources."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    key: str
    """The signing key's path on the node, or its URL."""
    fingerprint: str = "-"
    url: str | None = None
    suite: str
    """Suite and components, as in sources.list(5)."""


class DriverLock(Fact):
    """Compatible versions for one operating system. The row has the name of the operating system."""

    versions: dict[str, str]
    """Mapping from software to version, with the same keys as in images.yaml. Every row contains `driver`."""
    module: str = "nvidia"
    """File name of the kernel module, without .ko."""
    archives: tuple[AptArchive, ...] = Field(min_length=1)
    packages: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(min_length=1)
    nvswitch: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages for nodes with NVSwitch. If `nvswitch` is empty, nodes with NVSwitch are not supported."""
    optional: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages that are skipped with a warning if the archive does not contain them."""
    files: dict[str, str] = Field(default_factory=dict)
    """Mapping from absolute path to text for the configuration files that the installation needs."""
    refused_gpus: dict[str, str] = Field(default_factory=dict)
    """Mapping from an unsupported GPU type to the reason why the driver does not support it."""
    unverified: tuple[str, ...] = ()
    """Facts that could not be confirmed in the archive."""

    @property
    def driver(self) -> str:
        """The driver version without the package revision."""
        return self.versions["driver"]


class Archive(Fact):
    """A package archive that a mirror can replace. `url` is an extended regular expression."""

    url: str
    distribution: bool = False
    """Whether the node's own apt sources contain the archive."""


class Conflict(Fact):
    """Versions that do not work together. `consequence` states what fails in an image that contains all of them."""

    versions: dict[str, str] = Field(min_length=1)
    consequence: str


def incompatible(versions: Mapping[str, str], known: Mapping[str, Conflict]) -> Iterator[str]:
    """Yield a message for each set of versions in an image or a lock that do not work together."""
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
"""The amount of a quota that a machine uses: its number of vCPUs or GPUs, or a fixed number."""


class Price(Fact):
    """A machine type's list prices in one region. An unknown price is None."""

    usd_per_hour: float | None = Field(gt=0)
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    """The Spot price on the date in `spot_source`. Spot prices can change at any time."""
    spot_source: str = ""
    region: str

    @model_validator(mode="after")
    def _check_spot_source(self) -> Self:
        if (self.spot_usd_per_hour is None) != (not self.spot_source):
            raise ValueError(f"{self.name} must have both spot_usd_per_hour and spot_source, or neither")
        return self


class Floors(Fact):
    """Published minimum bus bandwidth, in GB/s, of an all-reduce within a node (`node`) or between nodes (`pair`).

    `node_gib` and `pair_gib` are the sizes of the messages. A minimum that is not published is None.
    """

    node: float | None = Field(default=None, gt=0)
    node_gib: int | None = Field(default=None, gt=0)
    pair: float | None = Field(default=None, gt=0)
    pair_gib: int | None = Field(default=None, gt=0)


class Machine(Fact):
    provider: str
    vcpus: int = Field(ge=1)
    memory_mib: int = Field(ge=512)
    gpus: int = Field(ge=0)
    gpu_type: str | None = None
    gpu_device: str | None = None
    """Prefix of the GPU device files: '/dev/nvidia' for real GPUs."""
    fabric: str
    topology: Topology | None = None
    """The row in topologies.yaml, or None if no source states the topology."""
    floors: Floors | None = None
    """The row in floors.yaml, or None if no source states the floors."""
    rdma: int = Field(default=0, ge=0)
    """Number of RDMA devices that a node needs before collectives can use its fabric."""
    rdma_devices: tuple[str, ...] = ()
    """The RDMA devices that collectives use. If `rdma_devices` is empty, collectives use all active devices."""
    quotas: dict[str, Count] = Field(default_factory=dict)
    """Mapping from quota to the amount that a machine uses. Spot machines use `spot_quotas` instead."""
    spot_quotas: dict[str, Count] = Field(default_factory=dict)
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values are not stated on a published page or in public code."""
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
        """Whether the cores near each GPU are unknown. False for fake GPUs."""
        if self.gpus < 2 or self.gpu_type == "fake":  # noqa: PLR2004  (affinity differs only between GPUs)
            return False
        known = self.topology
        return known is None or (not known.gpu_numa and known.sockets * known.numa_per_socket > 1)

    @property
    def has_nvidia_gpus(self) -> bool:
        """Whether the machine has GPUs that need NVIDIA's driver. False for fake GPUs."""
        return self.gpus > 0 and self.gpu_type != "fake"

    def without_gpus(self) -> Machine:
        """Return a copy without GPUs that has the same prices and uses the same amount of each quota."""
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
        """MiB of memory that Slurm can allocate to jobs.

        Slurm drains a node that has less memory than its RealMemory, so 5 % of the memory is reserved for the kernel
        and the daemons. The reserve is at least 1 GiB or, on machines with less than 4 GiB, a quarter.
        """
        reserve = max(self.memory_mib // 20, min(1024, self.memory_mib // 4))
        return self.memory_mib - reserve


class Fabric(Fact):
    """A type of network between nodes, and the environment variables and files that collectives need to use it."""

    env: dict[str, str]
    library_path: str | None = Field(default=None, pattern=r"^/[\w./-]+$")
    """The NCCL plugin's folder on the node, which comes first in the LD_LIBRARY_PATH of every job."""
    mounts: tuple[Annotated[str, Field(pattern=r"^/[\w./-]+(:ro)?$")], ...] = ()
    """Paths on the node that containers mount at the same paths. The suffix ':ro' makes a mount read-only."""


class Image(Fact):
    """An operating system image and the versions of the software in it."""

    os: str
    slurm_version: tuple[int, int]
    reference: str | None = None
    """Name and version of the image in the cloud, or None if it is not a cloud image."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Pinned software versions. GPUs with NVSwitch need the same version of `driver` and `fabric_manager`."""
    cloud_config: dict[str, Any] = Field(default_factory=dict)
    """Cloud-config that the image's agents need in addition to cloud-init/base.yaml."""


class ImageContract(Fact):
    """Facts that bootstrap stages depend on. The facts describe a published image before its first boot."""

    files: dict[str, str] = Field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """Paths or patterns of files that are missing in the image."""
    services: dict[str, Literal["enabled", "disabled", "masked"]] = Field(default_factory=dict)
    modules: dict[str, str] = Field(default_factory=dict)
    """Mapping from command to the environment module that adds it to PATH."""
    no_packages: tuple[str, ...] = ()
    """Packages that the distribution's archive lacks."""


def _read(file: str) -> dict[str, dict[str, Any]]:
    raw: dict[str, dict[str, Any]] = load_own((_FOLDER / file).read_text())
    return raw


def _rows(file: str, raw: dict[str, dict[str, Any]], model: type[_Row], **common: str) -> dict[str, _Row]:
    try:
        return {name: model(name=name, **common, **row) for name, row in raw.items()}
    except (ValidationError, TypeError) as error:
        raise CatalogError(f"components/catalog/{file}: {error}") from error


def read_rows(file: str, model: type[_Row]) -> dict[str, _Row]:
    """Return a catalog file's rows by name. Raises CatalogError if the file does not match `model`."""
    return _rows(file, _read(file), model)


def _by_provider(file: str, model: type[_Row]) -> Callable[[str], dict[str, _Row]]:
    """Return a cached function that reads a provider's rows from a file and returns them by name."""
    return cache(lambda provider: _rows(file, _read(file).get(provider, {}), model))


topologies = _by_provider("topologies.yaml", Topology)
"""Processor topologies by machine type."""
floors = _by_provider("floors.yaml", Floors)
"""Bandwidth floors by machine type."""
prices = _by_provider("prices.yaml", Price)
"""List prices by machine type."""
throughputs = _by_provider("throughput.yaml", Throughput)
"""Write throughput by kind of shared storage or, for the disks of a machine, by machine type."""
service_prices = _by_provider("service_prices.yaml", ServicePrice)
"""List prices of disks, addresses, gateways and shared storage by name."""


@cache
def machines(provider: str) -> dict[str, Machine]:
    """Return the provider's machine types by name, with their prices, topologies and floors. Raises CatalogError."""
    file = f"machines/{provider}.yaml"
    topology, floor, price = topologies(provider), floors(provider), prices(provider)
    rows = {
        name: row
        | {"topology": topology.get(name), "floors": floor.get(name)}
        | {field: getattr(price.get(name), field, None) for field in ("usd_per_hour", "spot_usd_per_hour")}
        for name, row in _read(file).items()
    }
    return _rows(file, rows, Machine, provider=provider)


def _table(file: str, model: type[_Row]) -> Callable[[], dict[str, _Row]]:
    """Return a cached function that reads the rows in a file and returns them by name."""
    return cache(lambda: read_rows(file, model))


fabrics = _table("fabrics.yaml", Fabric)
images = _table("images.yaml", Image)
image_contracts = _table("image_contracts.yaml", ImageContract)
"""Facts about pinned images by image name. Tests check the bootstrap stages against these facts."""
conflicts = _table("conflicts.yaml", Conflict)
driver_locks = _table("drivers.yaml", DriverLock)
"""Version locks for NVIDIA's driver, by operating system."""
archives = _table("archives.yaml", Archive)
