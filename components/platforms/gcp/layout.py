"""A GCP cluster's networks, and the addresses of the network interfaces. Imports no SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.gcp.spec import GcpSpec, Nics, family_of


class Nic(StrEnum):
    """Types of network interfaces, with their names in the API."""

    GVNIC = "GVNIC"
    RDMA = "MRDMA"


@dataclass(frozen=True, kw_only=True)
class SubnetLayout:
    """A subnet. `name` is unique in the project."""

    name: str
    cidr: IPv4Network


@dataclass(frozen=True, kw_only=True)
class NetworkLayout:
    """A network. Only the RoCE network has a profile, and it has one subnet for each RDMA interface."""

    name: str
    mtu: int
    subnets: tuple[SubnetLayout, ...]
    profile: str | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """A host's network interface."""

    kind: Nic
    subnet: str
    address: IPv4Address


def networks(plan: ClusterPlan) -> tuple[NetworkLayout, ...]:
    """Return the networks that the plan's machines need.

    All hosts share the first network, which is the primary one. The other networks have addresses from `fabric_cidr`.
    """
    spec, nics = plan.platform_spec(GcpSpec), _most_nics(plan)
    families = {family_of(host.machine.name) for host in plan.hosts}
    blocks = spec.fabric_cidr.subnets(new_prefix=plan.network.prefixlen)
    names = [f"{plan.name}-net", *(f"{plan.name}-gpu-net-{index}" for index in range(1, nics.gvnic))]
    made = [
        # Machines of a family with a smaller MTU would drop larger packets.
        _network(
            name,
            min(family.mtu for family in families if family.nics.gvnic > index),
            [next(blocks) if index else plan.network],
        )
        for index, name in enumerate(names)
    ]
    if nics.rdma:
        mtu = max(family.mtu for family in families if family.nics.rdma)
        subnets = [next(blocks) for _ in range(nics.rdma)]
        made.append(_network(f"{plan.name}-roce-net", mtu, subnets, f"{spec.zone}-vpc-roce"))
    return tuple(made)


def cards(made: Iterable[NetworkLayout], host: HostPlan) -> tuple[Card, ...]:
    """Return a host's network interfaces in the order of the guest's devices."""
    return tuple(
        # A host's address has the same offset in every subnet.
        Card(kind=kind, subnet=subnet.name, address=subnet.cidr[host.slot])
        for kind, subnet in _subnets(made, family_of(host.machine.name).nics)
    )


def subnets_needed(plan: ClusterPlan) -> int:
    """Return the number of subnets besides the primary one. All subnets have the same prefix length."""
    nics = _most_nics(plan)
    return nics.gvnic - 1 + nics.rdma


def networks_needed(plan: ClusterPlan) -> int:
    """Return the number of networks: one per gVNIC interface, and one for all RDMA interfaces."""
    nics = _most_nics(plan)
    return nics.gvnic + (nics.rdma > 0)


def _most_nics(plan: ClusterPlan) -> Nics:
    nics = [family_of(host.machine.name).nics for host in plan.hosts]
    return Nics(gvnic=max(nic.gvnic for nic in nics), rdma=max(nic.rdma for nic in nics))


def _subnets(made: Iterable[NetworkLayout], nics: Nics) -> Iterator[tuple[Nic, SubnetLayout]]:
    ordinary = [network.subnets[0] for network in made if network.profile is None]
    yield from ((Nic.GVNIC, subnet) for subnet in ordinary[: nics.gvnic])
    for network in made:
        if network.profile is not None:
            yield from ((Nic.RDMA, subnet) for subnet in network.subnets[: nics.rdma])


def _network(name: str, mtu: int, cidrs: Sequence[IPv4Network], profile: str | None = None) -> NetworkLayout:
    subnets = tuple(SubnetLayout(name=f"{name}-{index}", cidr=cidr) for index, cidr in enumerate(cidrs))
    return NetworkLayout(name=name, mtu=mtu, subnets=subnets, profile=profile)
