"""ClusterPlan: every host, name and address of a cluster, known before anything exists. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from components.catalog import Image, Machine
from components.spec import ClusterSpec

HEAD_OFFSET = 4
"""Azure keeps the first four addresses of a subnet for itself, so the head takes the next one everywhere."""

GROUP_BLOCKS = 8
"""The network is cut into eight equal blocks: block 0 for the head and services, blocks 1-7 for node groups.
A group's addresses depend only on its position in the stack file, so growing one group never moves another."""


class Role(StrEnum):
    """What a host is for."""

    HEAD = "head"
    WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One machine to be. `index` counts from 0 within its group; `slot` is unique and stable in the cluster."""

    name: str
    role: Role
    group: str | None
    index: int
    slot: int
    private_ip: IPv4Address
    machine: Machine
    spot: bool = False
    """Whether it is bought as Spot: cheaper, and taken back at any time."""
    placement: str = "none"
    """How near the machines of its group must be: `none`, `compact` or `same_fabric`."""
    works: bool = True
    """Whether jobs run on it: on every worker, and on a head that a group lists."""


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The cluster as it will be: the only thing renderers and platforms read."""

    name: str
    provider: str
    scheduler: str
    network: IPv4Network
    place: str
    """Where the provider counts quotas; empty where it counts none."""
    image: Image
    head: HostPlan
    workers: tuple[HostPlan, ...]
    containers: str = "none"
    """What starts containers for jobs on every node: none, docker or enroot."""
    borrowed: bool = False
    """Whether the machines existed before the cluster and go back to their owner."""
    quotas: tuple[tuple[str, int], ...] = ()
    """Name and amount of each quota that is needed beside the machines' own."""

    @property
    def hosts(self) -> tuple[HostPlan, ...]:
        """Every host, head first."""
        return (self.head, *self.workers)

    @property
    def nodes(self) -> tuple[HostPlan, ...]:
        """Every host that jobs run on: a head that works comes first."""
        return tuple(host for host in self.hosts if host.works)

    def group(self, name: str) -> tuple[HostPlan, ...]:
        """Return the hosts of one node group, by index; the head first where it works in it."""
        return tuple(host for host in self.nodes if host.group == name)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the node groups, in the stack file's order."""
        return tuple(dict.fromkeys(host.group for host in self.nodes if host.group is not None))


def group_capacity(network: IPv4Network) -> int:
    """Return how many nodes one group can hold in `network` (its first and last address stay unused)."""
    return network.num_addresses // GROUP_BLOCKS - 2


def plan_cluster(spec: ClusterSpec, machines: Mapping[str, Machine], image: Image) -> ClusterPlan:
    """Join a checked spec to the catalog's facts. Raises KeyError for what the checks should have refused."""
    existing = spec.platform.existing()
    head, workers = _made(spec, machines) if existing is None else _borrowed(spec, machines, existing)
    plan = ClusterPlan(
        name=spec.name,
        provider=spec.platform.provider,
        scheduler=spec.scheduler,
        containers=spec.containers,
        network=spec.network.cidr,
        place=spec.platform.quota_place(),
        image=image,
        head=head,
        workers=workers,
        borrowed=existing is not None,
    )
    return replace(plan, quotas=tuple(spec.platform.quotas(spec, plan).items()))


def _made(spec: ClusterSpec, machines: Mapping[str, Machine]) -> tuple[HostPlan, tuple[HostPlan, ...]]:
    """Machines that the platform makes: names and addresses follow from the stack file's order."""
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
            machine=machines[wish.machine],
            spot=wish.capacity.kind == "spot",
            placement=wish.placement,
        )
        for position, (group, wish) in enumerate(spec.nodes.items(), start=1)
        for index in range(wish.count)
    )
    head = HostPlan(
        name=f"{spec.name}-head",
        role=Role.HEAD,
        group=None,
        index=0,
        slot=HEAD_OFFSET,
        private_ip=network[HEAD_OFFSET],
        machine=machines[spec.head.machine],
        works=False,
    )
    return head, workers


def _borrowed(
    spec: ClusterSpec, machines: Mapping[str, Machine], existing: Mapping[str, IPv4Address]
) -> tuple[HostPlan, tuple[HostPlan, ...]]:
    """Machines that exist: they keep their addresses, and in the cluster the names that the stack file gives them."""
    chosen = spec.head.host or next(iter(existing))
    at_work = {name: (group, index) for group, wish in spec.nodes.items() for index, name in enumerate(wish.hosts)}

    def host(name: str, role: Role, machine: str) -> HostPlan:
        group, index = at_work.get(name, (None, 0))
        return HostPlan(
            name=name,
            role=role,
            group=group,
            index=index,
            slot=list(existing).index(name),
            private_ip=existing[name],
            machine=machines[machine],
            works=name in at_work,
        )

    workers = tuple(
        host(name, Role.WORKER, spec.nodes[group].machine) for name, (group, _) in at_work.items() if name != chosen
    )
    return host(chosen, Role.HEAD, spec.head.machine), workers
