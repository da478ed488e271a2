"""The virtual network of a cluster: its subnets, who may enter, and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pulumi

from components.platforms.azure.site import Site
from components.platforms.narrow import narrow_import

with narrow_import("pulumi_azure_native.network"):
    from pulumi_azure_native.network._inputs import (
        AddressSpaceArgs,
        BastionHostIPConfigurationArgs,
        DelegationArgs,
        NatGatewaySkuArgs,
        NetworkSecurityGroupArgs,
        PublicIPAddressSkuArgs,
        SecurityRuleArgs,
        ServiceEndpointPropertiesFormatArgs,
        SkuArgs,
        SubResourceArgs,
    )
    from pulumi_azure_native.network.bastion_host import BastionHost
    from pulumi_azure_native.network.nat_gateway import NatGateway
    from pulumi_azure_native.network.network_security_group import NetworkSecurityGroup
    from pulumi_azure_native.network.public_ip_address import PublicIPAddress
    from pulumi_azure_native.network.subnet import Subnet
    from pulumi_azure_native.network.virtual_network import VirtualNetwork

_BASTION_SUBNET = "AzureBastionSubnet"
"""Azure finds Bastion's subnet by this very name."""
_NAT_IDLE_MINUTES = 10
_HEAD_IDLE_MINUTES = 30
"""Azure forgets a silent TCP connection to a public address after 4 minutes unless it is told otherwise, and 30 is its
maximum (Azure blog, "New: Configurable Idle Timeout for Azure Load Balancer", read 2026-11-22)."""


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """All plain values. `ssh_from`: where ssh may come from; empty for nowhere."""

    cidr: IPv4Network
    head: IPv4Address
    ssh_from: Sequence[IPv4Network]
    bastion: IPv4Network | None = None
    netapp: IPv4Network | None = None
    storage_endpoint: bool = False
    """Whether nodes reach storage accounts from inside, without the way out."""


class Network(pulumi.ComponentResource):
    """One network for all nodes. ssh enters at the head only; between nodes everything is open."""

    nodes: pulumi.Output[str]
    """Id of the nodes' subnet. It exists with its rules and its way out, so machines may come."""
    netapp: pulumi.Output[str] | None = None
    """Id of the subnet delegated to NetApp Files."""
    bastion: pulumi.Output[str] | None = None
    """Id of the Bastion, or None if the stack has none. Its creation takes minutes, and no tunnel works before."""

    def __init__(self, name: str, site: Site, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Network", name, {}, opts)
        self._site, self._args = site, args
        self._child = pulumi.ResourceOptions(parent=self)
        # Two changes of one network at a time are refused, so each subnet waits for the one before.
        self._last: pulumi.Resource = self._network()
        self.nodes = self._nodes_subnet().id
        if args.netapp is not None:
            self.netapp = self._netapp_subnet(args.netapp).id
        if args.bastion is not None:
            self.bastion = self._bastion(args.bastion)
        self.register_outputs({})

    def _network(self) -> VirtualNetwork:
        blocks = [self._args.cidr, self._args.bastion, self._args.netapp]
        self._name = f"{self._site.cluster}-net"
        return VirtualNetwork(
            self._name,
            virtual_network_name=self._name,
            resource_group_name=self._site.group,
            location=self._site.region,
            address_space=AddressSpaceArgs(address_prefixes=[str(block) for block in blocks if block is not None]),
            tags=self._site.tags,
            opts=self._child,
        )

    def _nodes_subnet(self) -> Subnet:
        endpoint = ServiceEndpointPropertiesFormatArgs(service="Microsoft.Storage")
        subnet = Subnet(
            f"{self._name}-nodes",
            subnet_name="nodes",
            virtual_network_name=self._name,
            resource_group_name=self._site.group,
            address_prefix=str(self._args.cidr),
            network_security_group=NetworkSecurityGroupArgs(id=self._rules().id),
            nat_gateway=SubResourceArgs(id=self._way_out().id),
            # Said here, since Azure's own default changed between versions: nodes leave through the gateway or not.
            default_outbound_access=False,
            service_endpoints=[endpoint] if self._args.storage_endpoint else None,
            opts=self._after_last(),
        )
        self._last = subnet
        return subnet

    def _netapp_subnet(self, cidr: IPv4Network) -> Subnet:
        subnet = Subnet(
            f"{self._name}-netapp",
            subnet_name="netapp",
            virtual_network_name=self._name,
            resource_group_name=self._site.group,
            address_prefix=str(cidr),
            delegations=[DelegationArgs(name="netapp", service_name="Microsoft.NetApp/volumes")],
            default_outbound_access=False,
            opts=self._after_last(),
        )
        self._last = subnet
        return subnet

    def _bastion(self, cidr: IPv4Network) -> pulumi.Output[str]:
        subnet = Subnet(
            f"{self._name}-bastion",
            subnet_name=_BASTION_SUBNET,
            virtual_network_name=self._name,
            resource_group_name=self._site.group,
            address_prefix=str(cidr),
            opts=self._after_last(),
        )
        self._last = subnet
        name = f"{self._site.cluster}-bastion"
        address = public_address(name, self._site, self._child)
        return BastionHost(
            name,
            bastion_host_name=name,
            resource_group_name=self._site.group,
            location=self._site.region,
            # Tunnels for a client of one's own come with Standard, not with Basic.
            sku=SkuArgs(name="Standard"),
            enable_tunneling=True,
            ip_configurations=[
                BastionHostIPConfigurationArgs(
                    name="bastion",
                    subnet=SubResourceArgs(id=subnet.id),
                    public_ip_address=SubResourceArgs(id=address.id),
                )
            ],
            tags=self._site.tags,
            opts=self._child,
        ).id

    def _rules(self) -> NetworkSecurityGroup:
        return NetworkSecurityGroup(
            f"{self._name}-rules",
            network_security_group_name=f"{self._name}-rules",
            resource_group_name=self._site.group,
            location=self._site.region,
            security_rules=security_rules(self._args),
            tags=self._site.tags,
            opts=self._child,
        )

    def _way_out(self) -> NatGateway:
        name = f"{self._name}-nat"
        return NatGateway(
            name,
            nat_gateway_name=name,
            resource_group_name=self._site.group,
            location=self._site.region,
            sku=NatGatewaySkuArgs(name="Standard"),
            idle_timeout_in_minutes=_NAT_IDLE_MINUTES,
            public_ip_addresses=[SubResourceArgs(id=public_address(name, self._site, self._child).id)],
            tags=self._site.tags,
            opts=self._child,
        )

    def _after_last(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._last])


def head_address(name: str, site: Site, opts: pulumi.ResourceOptions) -> PublicIPAddress:
    """Declare the head's public address: silent ssh sessions to it last as long as Azure allows."""
    return public_address(name, site, opts, idle_minutes=_HEAD_IDLE_MINUTES)


def public_address(
    name: str, site: Site, opts: pulumi.ResourceOptions, *, idle_minutes: int | None = None
) -> PublicIPAddress:
    """Declare a fixed public address; its name ends with "-address".

    It belongs to no zone: it serves machines of every zone, and a stack that moves to another zone keeps it.
    """
    return PublicIPAddress(
        f"{name}-address",
        public_ip_address_name=f"{name}-address",
        resource_group_name=site.group,
        location=site.region,
        sku=PublicIPAddressSkuArgs(name="Standard"),
        public_ip_allocation_method="Static",
        idle_timeout_in_minutes=idle_minutes,
        tags=site.tags,
        opts=opts,
    )


def security_rules(args: NetworkArgs) -> list[SecurityRuleArgs]:
    """Return who may enter: ssh at the head, everything between nodes, and nobody else of any network."""
    inside = str(args.cidr)
    ssh = SecurityRuleArgs(
        name="ssh",
        priority=100,
        access="Allow",
        protocol="Tcp",
        source_address_prefixes=[str(source) for source in args.ssh_from],
        destination_address_prefix=f"{args.head}/32",
        destination_port_range="22",
        direction="Inbound",
        source_port_range="*",
    )
    between = SecurityRuleArgs(
        name="inside",
        priority=200,
        access="Allow",
        protocol="*",
        source_address_prefix=inside,
        destination_address_prefix=inside,
        destination_port_range="*",
        direction="Inbound",
        source_port_range="*",
    )
    # Azure's own last rules let in whatever is joined to the network by a peering.
    nobody_else = SecurityRuleArgs(
        name="nobody-else",
        priority=4096,
        access="Deny",
        protocol="*",
        source_address_prefix="*",
        destination_address_prefix="*",
        destination_port_range="*",
        direction="Inbound",
        source_port_range="*",
    )
    return [*([ssh] if args.ssh_from else []), between, nobody_else]
