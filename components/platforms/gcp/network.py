"""Networks, firewalls and the way out: what a layout becomes in Google's cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi

from components.platforms.gcp.layout import PRIMARY, Layout, NetworkLayout
from components.platforms.gcp.sdk import narrow_import

with narrow_import():
    from pulumi_gcp.compute._inputs import FirewallAllowArgs
    from pulumi_gcp.compute.firewall import Firewall
    from pulumi_gcp.compute.network import Network
    from pulumi_gcp.compute.router import Router
    from pulumi_gcp.compute.router_nat import RouterNat
    from pulumi_gcp.compute.subnetwork import Subnetwork

IAP_RANGE = IPv4Network("35.235.240.0/20")
"""Where Identity-Aware Proxy connects from; Google's documentation of TCP forwarding."""

_PORTS_PER_VM = 1024
"""The default of 64 runs out when a node pulls a container or installs packages: each open connection takes one."""


HEAD_TAG = "trainyard-head"
"""Network tag of the hosts that ssh may enter at."""


@dataclass(frozen=True, kw_only=True)
class NetworksArgs:
    """`ssh_from`: where ssh may come from; empty for nowhere. All plain values."""

    layout: Layout
    project: str
    region: str
    ssh_from: Sequence[IPv4Network]


class Networks(pulumi.ComponentResource):
    """All networks of one cluster. ssh enters at the head only."""

    subnets: dict[str, pulumi.Output[str]]
    """Self link of each subnet by its name."""
    primary: pulumi.Output[str]
    """Name of the network that every host is in."""
    exit: RouterNat
    """Hosts need it from their first minute: packages come through it."""

    def __init__(self, name: str, args: NetworksArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:Networks", name, {}, opts)
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        self.subnets = {}
        self._links: dict[str, pulumi.Output[str]] = {}
        self._names: dict[str, pulumi.Output[str]] = {}
        for wanted in args.layout.networks:
            self._network(wanted)
        primary = args.layout.networks[PRIMARY]
        self.primary = self._names[primary.name]
        self._ssh(primary)
        self.exit = self._way_out(primary)
        self.register_outputs({})

    def _network(self, wanted: NetworkLayout) -> None:
        network = Network(
            wanted.name,
            name=wanted.name,
            auto_create_subnetworks=False,
            mtu=wanted.mtu,
            network_profile=wanted.profile and f"projects/{self._args.project}/global/networkProfiles/{wanted.profile}",
            opts=self._child,
        )
        self._links[wanted.name] = network.self_link
        self._names[wanted.name] = network.name
        for subnet in wanted.subnets:
            made = Subnetwork(
                subnet.name,
                name=subnet.name,
                network=network.self_link,
                region=self._args.region,
                ip_cidr_range=str(subnet.cidr),
                private_ip_google_access=wanted.profile is None,
                opts=self._child,
            )
            self.subnets[subnet.name] = made.self_link
        # A RoCE network takes no such rules: its cards speak to one another and to nothing else.
        if wanted.profile is None:
            self._inside(wanted)

    def _inside(self, wanted: NetworkLayout) -> None:
        Firewall(
            f"{wanted.name}-inside",
            name=f"{wanted.name}-inside",
            network=self._links[wanted.name],
            direction="INGRESS",
            source_ranges=[str(subnet.cidr) for subnet in wanted.subnets],
            allows=[FirewallAllowArgs(protocol="all")],
            opts=self._child,
        )

    def _ssh(self, primary: NetworkLayout) -> None:
        if not self._args.ssh_from:
            return
        Firewall(
            f"{primary.name}-ssh",
            name=f"{primary.name}-ssh",
            network=self._links[primary.name],
            direction="INGRESS",
            source_ranges=[str(source) for source in self._args.ssh_from],
            target_tags=[HEAD_TAG],
            allows=[FirewallAllowArgs(protocol="tcp", ports=["22"])],
            opts=self._child,
        )

    def allow_callbacks(self, name: str, server: pulumi.Input[str]) -> None:
        """Let an NFS version 3 server outside the network open connections to the hosts.

        Version 3 needs communication in both directions on several ports (Google, "About supported file system
        protocols", read 2026-11-22): the server grants a lock that becomes free by a call to the client's portmapper
        (111) and lock manager. A VPC denies what no rule allows.
        """
        Firewall(
            name,
            name=name,
            network=self.primary,
            direction="INGRESS",
            source_ranges=[pulumi.Output.concat(server, "/32")],
            # Not the ports of system services, SSH among them.
            allows=[FirewallAllowArgs(protocol=protocol, ports=["111", "1024-65535"]) for protocol in ("tcp", "udp")],
            opts=self._child,
        )

    def _way_out(self, primary: NetworkLayout) -> RouterNat:
        router = Router(
            f"{primary.name}-router",
            name=f"{primary.name}-router",
            network=self._links[primary.name],
            region=self._args.region,
            opts=self._child,
        )
        return RouterNat(
            f"{primary.name}-nat",
            name=f"{primary.name}-nat",
            router=router.name,
            region=self._args.region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            min_ports_per_vm=_PORTS_PER_VM,
            opts=self._child,
        )
