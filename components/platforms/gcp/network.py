"""A GCP cluster's networks, firewall rules and Cloud NAT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_gcp import compute

from components.platforms.gcp.layout import NetworkLayout
from components.platforms.gcp.spec import PORTS_PER_VM

HEAD_TAG = "trainyard-head"
"""Network tag of the head, the only host that accepts SSH from outside."""
IAP_RANGE = "35.235.240.0/20"
"""The range from which Identity-Aware Proxy connects (Google's documentation on TCP forwarding)."""


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """Arguments for a cluster's networks."""

    project: str
    region: str
    layout: Sequence[NetworkLayout]
    """The networks, starting with the primary network."""
    ssh_from: Sequence[str] = ()
    """Networks (CIDR) that are allowed to connect to the head over SSH."""


class Network(pulumi.ComponentResource):
    """All networks of a cluster. Only the head accepts SSH from outside."""

    subnets: dict[str, pulumi.Output[str]]
    """Mapping from subnet name to self link."""
    primary: pulumi.Output[str]
    """The primary network's name."""
    nat: compute.RouterNat
    """Cloud NAT, through which hosts download packages during their first boot."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        former = pulumi.ResourceOptions(aliases=[pulumi.Alias(type_="trainyard:gcp:Networks")])
        super().__init__("trainyard:gcp:Network", name, None, pulumi.ResourceOptions.merge(opts, former))
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        self.subnets = {}
        primary, *_ = [self._network(wanted) for wanted in args.layout]
        self.primary = primary.name
        first = args.layout[0].name
        if args.ssh_from:
            ssh = compute.FirewallAllowArgs(protocol="tcp", ports=["22"])
            sources = list(args.ssh_from)
            self._allow(f"{first}-ssh", primary.self_link, source_ranges=sources, target_tags=[HEAD_TAG], allows=[ssh])
        self.nat = self._nat(first, primary)
        self.register_outputs({"primary": self.primary, "subnets": self.subnets})

    def allow_callbacks(self, name: str, server: pulumi.Input[str]) -> None:
        """Allow connections to the hosts from an NFS version 3 server outside the network.

        Version 3 needs connections in both directions on several ports (Google, "About supported file system
        protocols", read 2026-11-22), but a VPC denies incoming connections by default. For example, the server calls
        the client's portmapper (port 111) and lock manager when a lock is released.
        """
        # The ports exclude those of system services such as SSH.
        allows = [
            compute.FirewallAllowArgs(protocol=protocol, ports=["111", "1024-65535"]) for protocol in ("tcp", "udp")
        ]
        self._allow(name, self.primary, source_ranges=[pulumi.Output.concat(server, "/32")], allows=allows)

    def _network(self, wanted: NetworkLayout) -> compute.Network:
        network = compute.Network(
            wanted.name,
            name=wanted.name,
            auto_create_subnetworks=False,
            mtu=wanted.mtu,
            network_profile=wanted.profile and f"projects/{self._args.project}/global/networkProfiles/{wanted.profile}",
            opts=self._child,
        )
        for subnet in wanted.subnets:
            made = compute.Subnetwork(
                subnet.name,
                name=subnet.name,
                network=network.self_link,
                region=self._args.region,
                ip_cidr_range=str(subnet.cidr),
                private_ip_google_access=wanted.profile is None,
                opts=self._child,
            )
            self.subnets[subnet.name] = made.self_link
        # A RoCE network does not support firewall rules, but its interfaces can reach only each other.
        if wanted.profile is None:
            self._allow(
                f"{wanted.name}-inside",
                network.self_link,
                source_ranges=[str(subnet.cidr) for subnet in wanted.subnets],
                allows=[compute.FirewallAllowArgs(protocol="all")],
            )
        return network

    def _allow(self, name: str, network: pulumi.Input[str], **rule: Any) -> None:
        compute.Firewall(name, name=name, network=network, direction="INGRESS", **rule, opts=self._child)

    def _nat(self, name: str, primary: compute.Network) -> compute.RouterNat:
        router = compute.Router(
            f"{name}-router",
            name=f"{name}-router",
            network=primary.self_link,
            region=self._args.region,
            opts=self._child,
        )
        return compute.RouterNat(
            f"{name}-nat",
            name=f"{name}-nat",
            router=router.name,
            region=self._args.region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            min_ports_per_vm=PORTS_PER_VM,
            opts=self._child,
        )
