"""ClusterPlan: a cluster's hosts with their names and addresses, computed before any resource is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Literal, TypeVar

from components.catalog import Image, Machine, driver_locks
from components.spec.cluster import MAX_GROUPS, AccessSpec, ClusterSpec, GroupSpec, LimitsSpec, SharedStorageSpec
from components.spec.model import CloudSpec, ExistingHostsSpec, PlatformSpec, existing_hosts
from components.spec.monitoring import MonitoringSpec
from components.spec.people import UserSpec

HEAD_OFFSET = 4
"""Index of the head's address in the network. Azure reserves the first four addresses in each subnet."""

GROUP_BLOCKS = MAX_GROUPS + 1
"""Number of equal blocks in the network. A group's addresses depend only on its position in the stack file, so
enlarging a group does not affect other groups."""


class Role(StrEnum):
    HEAD = "head"
    WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    name: str
    role: Role
    group: str | None
    index: int
    """Index of the host in its group, starting at 0."""
    slot: int
    """Index of the host in the cluster. A machine that the platform creates has this index in the network."""
    private_ip: IPv4Address
    machine: Machine
    spot: bool = False
    """Whether the cloud can evict the machine."""
    placement: str = "none"
    """Placement of the host's group: `none`, `compact` or `same_fabric`."""
    runs_jobs: bool = True
    """True for workers, and for a head that belongs to a node group."""
    driver: str = "none"
    """Where NVIDIA's driver comes from: `image`, `install` or `none`."""


_Platform = TypeVar("_Platform", bound=PlatformSpec)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """A planned cluster, which is the only input to plan checks, renderers, platforms and previews."""

    name: str
    platform: PlatformSpec
    """The `platform:` section. Only that platform's code reads the platform-specific fields."""
    scheduler: str
    containers: str
    """Container runtime on the nodes: none, docker or enroot."""
    network: IPv4Network
    groups: Mapping[str, GroupSpec]
    """Node groups by name, in the same order as in the stack file."""
    access: AccessSpec
    storage: SharedStorageSpec
    limits: LimitsSpec
    busbw_gate: float | Literal["default", "off"]
    """Bandwidth gate: `default`, `off`, or the floor in GB/s for pairs of nodes or a single node."""
    unmeasured: Literal["warn", "drain"]
    """Bandwidth gate: whether nodes without a measurement stay in service."""
    idle_minutes: int | None
    """The time after which the head stops an idle cluster, or None if it does not."""
    repair: Literal["ask", "auto"]
    """Whether `yard heal --auto` only prints the steps of a repair (`ask`) or also performs them."""
    monitoring: MonitoringSpec | None
    """How metrics are stored and alerts are delivered, or None without monitoring."""
    mirrors: Mapping[str, str]
    """Mapping from package archive to the URL of its mirror."""
    users: tuple[UserSpec, ...]
    """The people with their own accounts."""
    ssh_ca: str | None
    """The OpenSSH public key of the authority whose certificates permit people to log in."""
    image: Image
    head: HostPlan
    workers: tuple[HostPlan, ...]

    @property
    def provider(self) -> str:
        return self.platform.provider

    @property
    def region(self) -> str:
        """The region whose quotas and prices apply, or "" if the platform is not a cloud."""
        return self.platform.quota_region if isinstance(self.platform, CloudSpec) else ""

    @property
    def uses_existing_hosts(self) -> bool:
        return isinstance(self.platform, ExistingHostsSpec)

    def platform_spec(self, model: type[_Platform]) -> _Platform:
        """Return the `platform:` section. Raises TypeError if the section is not an instance of `model`."""
        if not isinstance(self.platform, model):
            raise TypeError(f"the plan has a {type(self.platform).__name__}, not a {model.__name__}")
        return self.platform

    @property
    def hosts(self) -> tuple[HostPlan, ...]:
        """All hosts. The head comes first."""
        return (self.head, *self.workers)

    @property
    def nodes(self) -> tuple[HostPlan, ...]:
        """All hosts that run jobs. The head comes first if it runs jobs."""
        return tuple(host for host in self.hosts if host.runs_jobs)

    @property
    def is_elastic(self) -> bool:
        """Whether the head starts and stops machines."""
        return any(group.elastic is not None for group in self.groups.values())

    def elastic(self, host: HostPlan) -> bool:
        """Return whether the host's machine can be off, because the head stops it."""
        if host == self.head:
            return self.idle_minutes is not None
        return host.role is Role.WORKER and host.group is not None and self.groups[host.group].elastic is not None

    def group(self, name: str) -> tuple[HostPlan, ...]:
        """Return the hosts in a node group. The head comes first if it belongs to the group."""
        return tuple(host for host in self.nodes if host.group == name)


def group_capacity(network: IPv4Network) -> int:
    """Return the maximum size of a node group. The first and last addresses in a group's block are not used."""
    return network.num_addresses // GROUP_BLOCKS - 2


def plan_cluster(spec: ClusterSpec, machines: Mapping[str, Machine], image: Image) -> ClusterPlan:
    """Return the plan for a checked spec. Raises KeyError if the spec names an unknown machine type or host."""
    existing = existing_hosts(spec.platform)
    if existing is None:
        head, workers = _created_hosts(spec, machines, image)
    else:
        head, workers = _existing_hosts(spec, machines, image, existing)
    containers: str | None = spec.containers
    if containers is None:
        # The default is never docker, because docker lets the job user become root. The owners of existing hosts decide
        # which software is installed there.
        has_gpus = any(host.runs_jobs and host.machine.has_nvidia_gpus for host in (head, *workers))
        containers = "enroot" if has_gpus and existing is None else "none"
    return ClusterPlan(
        name=spec.name,
        platform=spec.platform,
        scheduler=spec.scheduler,
        containers=containers,
        network=spec.network.cidr,
        groups=spec.nodes,
        access=spec.access,
        storage=spec.storage.shared,
        limits=spec.limits,
        busbw_gate=spec.gates.nccl_busbw,
        unmeasured=spec.gates.unmeasured,
        idle_minutes=None if spec.idle is None else spec.idle.minutes,
        repair=spec.repair,
        monitoring=spec.monitoring if _is_monitored(spec) else None,
        mirrors=spec.mirrors.by_archive(),
        users=spec.users,
        ssh_ca=spec.ssh.ca,
        image=image,
        head=head,
        workers=workers,
    )


def _is_monitored(spec: ClusterSpec) -> bool:
    """Return whether the nodes have exporters. By default, only the machines of clouds do, because they cost money."""
    enabled = spec.monitoring.enabled
    return isinstance(spec.platform, CloudSpec) if enabled is None else enabled


def driver_origin(chosen: str | None, machine: Machine, image: Image, *, exists: bool) -> str:
    """Return where a group's NVIDIA driver comes from: `chosen`, or a default that depends on machine and image."""
    if chosen is not None:
        return chosen
    if not machine.has_nvidia_gpus:
        return "none"
    has_driver = exists or "driver" in image.versions
    return "image" if has_driver or image.os not in driver_locks() else "install"


def _created_hosts(
    spec: ClusterSpec, machines: Mapping[str, Machine], image: Image
) -> tuple[HostPlan, tuple[HostPlan, ...]]:
    network = spec.network.cidr
    block = network.num_addresses // GROUP_BLOCKS
    workers = tuple(
        HostPlan(
            name=f"{spec.name}-{group}-{index}",
            role=Role.WORKER,
            group=group,
            index=index,
            slot=block * position + 1 + index,
            private_ip=network[block * position + 1 + index],
            machine=_usable(machines[section.machine], section.driver),
            spot=section.capacity.kind == "spot",
            placement=section.placement,
            driver=driver_origin(section.driver, machines[section.machine], image, exists=False),
        )
        for position, (group, section) in enumerate(spec.nodes.items(), start=1)
        for index in range(section.count)
    )
    machine = machines[spec.head.machine]
    has_driver = machine.has_nvidia_gpus and "driver" in image.versions
    head = HostPlan(
        name=f"{spec.name}-head",
        role=Role.HEAD,
        group=None,
        index=0,
        slot=HEAD_OFFSET,
        private_ip=network[HEAD_OFFSET],
        machine=machine,
        runs_jobs=False,
        driver="image" if has_driver else "none",
    )
    return head, workers


def _existing_hosts(
    spec: ClusterSpec, machines: Mapping[str, Machine], image: Image, existing: Mapping[str, IPv4Address]
) -> tuple[HostPlan, tuple[HostPlan, ...]]:
    head = spec.head.host or next(iter(existing))
    groups = {name: (group, index) for group, section in spec.nodes.items() for index, name in enumerate(section.hosts)}

    def host(name: str, role: Role, machine: str) -> HostPlan:
        group, index = groups.get(name, (None, 0))
        chosen = spec.nodes[group].driver if group else None
        return HostPlan(
            name=name,
            role=role,
            group=group,
            index=index,
            slot=list(existing).index(name),
            private_ip=existing[name],
            machine=_usable(machines[machine], chosen),
            runs_jobs=name in groups,
            driver=driver_origin(chosen, machines[machine], image, exists=True),
        )

    workers = tuple(
        host(name, Role.WORKER, spec.nodes[group].machine) for name, (group, _) in groups.items() if name != head
    )
    return host(head, Role.HEAD, spec.head.machine), workers


def _usable(machine: Machine, driver: str | None) -> Machine:
    """Return the machine without its GPUs if they need a driver and have none."""
    return machine.without_gpus() if driver == "none" and machine.has_nvidia_gpus else machine
