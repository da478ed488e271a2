"""The networks of a GCP cluster and every card's address in them, known before anything exists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from components.plan import ClusterPlan, HostPlan
from components.platforms.gcp.families import Family, family_of

PRIMARY = 0
"""Index of the network that every host is in, and the only one with a way out."""


class Nic(StrEnum):
    """Kinds of network card, as the API names them."""

    GVNIC = "GVNIC"
    RDMA = "MRDMA"


@dataclass(frozen=True, kw_only=True)
class SubnetLayout:
    """A subnet to be. `name` is unique in the project."""

    name: str
    cidr: IPv4Network


@dataclass(frozen=True, kw_only=True)
class NetworkLayout:
    """A network to be: one subnet, or one for each RDMA card. `profile` is set on the RoCE network alone."""

    name: str
    mtu: int
    subnets: tuple[SubnetLayout, ...]
    profile: str | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card of a host, in the order of the guest's devices."""

    kind: Nic
    network: str
    subnet: str
    address: IPv4Address


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All networks of a cluster, the primary one first."""

    networks: tuple[NetworkLayout, ...]

    def cards(self, host: HostPlan) -> tuple[Card, ...]:
        """Return the cards of a host: as many as its machine family needs, the head's just one."""
        family = family_of(host.machine.name)
        subnets = [(Nic.GVNIC, net, net.subnets[0]) for net in self._gvnic[: family.nics.gvnic]]
        subnets += [(Nic.RDMA, net, subnet) for net in self._roce for subnet in net.subnets[: family.nics.rdma]]
        return tuple(
            # A host stands at the same place in every subnet, so that one number finds it everywhere.
            Card(kind=kind, network=net.name, subnet=subnet.name, address=subnet.cidr[host.slot])
            for kind, net, subnet in subnets
        )

    @property
    def _gvnic(self) -> tuple[NetworkLayout, ...]:
        return tuple(net for net in self.networks if net.profile is None)

    @property
    def _roce(self) -> tuple[NetworkLayout, ...]:
        return tuple(net for net in self.networks if net.profile is not None)


def layout(plan: ClusterPlan, fabric: IPv4Network, zone: str) -> Layout:
    """Return the networks that the plan's machines need; those beside the primary one lie in `fabric`.

    Raises ValueError where `fabric` is too narrow; `subnets_needed` tells before.
    """
    used = [family_of(name) for name in {host.machine.name: None for host in plan.hosts}]
    blocks = fabric.subnets(new_prefix=plan.network.prefixlen) if subnets_needed(plan) else iter(())
    extra = max(family.nics.gvnic for family in used) - 1
    networks = [_network(f"{plan.name}-net", _mtu(used, PRIMARY), [plan.network])]
    networks += [
        _network(f"{plan.name}-gpu-net-{index}", _mtu(used, index), [next(blocks)]) for index in range(1, extra + 1)
    ]
    cards = max(family.nics.rdma for family in used)
    if cards:
        mtu = max(family.mtu for family in used if family.nics.rdma)
        subnets = [next(blocks) for _ in range(cards)]
        networks.append(_network(f"{plan.name}-roce-net", mtu, subnets, f"{zone}-vpc-roce"))
    return Layout(networks=tuple(networks))


def subnets_needed(plan: ClusterPlan) -> int:
    """Return how many subnets as wide as the primary network the plan needs beside it."""
    nics = [family_of(host.machine.name).nics for host in plan.hosts]
    return max(nic.gvnic for nic in nics) - 1 + max(nic.rdma for nic in nics)


def networks_needed(plan: ClusterPlan) -> int:
    """Return how many networks the plan makes: one for each gVNIC card, and one for all RDMA cards together."""
    nics = [family_of(host.machine.name).nics for host in plan.hosts]
    return max(nic.gvnic for nic in nics) + any(nic.rdma for nic in nics)


def _mtu(used: Iterable[Family], index: int) -> int:
    """The smallest that a family with a card in the network asks for: a larger packet would not arrive."""
    return min(family.mtu for family in used if family.nics.gvnic > index)


def _network(name: str, mtu: int, cidrs: Sequence[IPv4Network], profile: str | None = None) -> NetworkLayout:
    subnets = tuple(SubnetLayout(name=f"{name}-{index}", cidr=cidr) for index, cidr in enumerate(cidrs))
    return NetworkLayout(name=name, mtu=mtu, subnets=subnets, profile=profile)
