"""A cluster's virtual network: subnets, security rules, NAT gateway and Bastion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pulumi
from pulumi_azure_native import network


@dataclass(frozen=True, kw_only=True)
class ResourceGroup:
    """A cluster's resource group."""

    cluster: str
    name: pulumi.Output[str]
    id: pulumi.Output[str]
    region: str
    zone: str | None
    """Availability zone of the machines and disks, or None if Azure chooses it."""

    @property
    def zones(self) -> list[str] | None:
        """Return the `zones` argument for zonal resources."""
        return None if self.zone is None else [self.zone]

    @property
    def common(self) -> dict[str, Any]:
        """Return the arguments that all resources with a region share: the resource group, the region and the tags."""
        tags = {"trainyard-cluster": self.cluster}
        return {"resource_group_name": self.name, "location": self.region, "tags": tags}


HEAD_IDLE_MINUTES = 30
"""Idle timeout of TCP connections to the head's public address. Azure's default is 4 minutes, and its maximum is 30
(Azure blog, "New: Configurable Idle Timeout for Azure Load Balancer", read 2026-11-22)."""
_NAT_IDLE_MINUTES = 10


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """Arguments for a network. `name` is the cluster's name."""

    resource_group: ResourceGroup
    name: str
    cidr: IPv4Network
    head: IPv4Address
    """Private address of the head, the only machine that accepts SSH from outside."""
    ssh_from: Sequence[IPv4Network] = ()
    """Networks that are allowed to connect to the head over SSH. With a Bastion, only its subnet is allowed instead."""
    bastion_cidr: IPv4Network | None = None
    """Subnet for a Bastion, or None for a network without one."""
    netapp_cidr: IPv4Network | None = None
    """Subnet that is delegated to NetApp Files, or None for a network without one."""
    storage_endpoint: bool = False
    """Whether the nodes' subnet has a service endpoint for Azure Storage, which Azure Files needs."""


class Network(pulumi.ComponentResource):
    """The nodes' network. Only the head accepts SSH from outside, and traffic between nodes is not restricted."""

    nodes: pulumi.Output[str]
    """Id of the nodes' subnet, which has the security rules and the NAT gateway."""
    netapp: pulumi.Output[str] | None = None
    """Id of the subnet that is delegated to NetApp Files, or None if there is no such subnet."""
    bastion: pulumi.Output[str] | None = None
    """Id of the Bastion, or None if there is no Bastion. Creating a Bastion takes Azure several minutes."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Network", name, None, opts)
        bastion, netapp = args.bastion_cidr, args.netapp_cidr
        cidrs = (args.cidr, bastion, netapp)
        self._group = args.resource_group
        self._name = f"{args.name}-net"
        self._child = pulumi.ResourceOptions(parent=self)
        self._last: pulumi.Resource = network.VirtualNetwork(
            self._name,
            virtual_network_name=self._name,
            address_space=network.AddressSpaceArgs(address_prefixes=[str(cidr) for cidr in cidrs if cidr is not None]),
            **self._group.common,
            opts=self._child,
        )
        self.nodes = self._nodes_subnet(args)
        if netapp is not None:
            delegation = network.DelegationArgs(name="netapp", service_name="Microsoft.NetApp/volumes")
            # A delegated subnet cannot be private (MicrosoftDocs/azure-docs at 76cb79f7,
            # articles/virtual-network/ip-services/default-outbound-access.md of 2026-01-30, read 2026-11-24).
            self.netapp = self._subnet("netapp", netapp, delegations=[delegation])
        if bastion is not None:
            self.bastion = self._bastion(f"{args.name}-bastion", bastion)
        self.register_outputs({"nodes": self.nodes, "netapp": self.netapp, "bastion": self.bastion})

    def _nodes_subnet(self, args: NetworkArgs) -> pulumi.Output[str]:
        rules = network.NetworkSecurityGroup(
            f"{self._name}-rules",
            network_security_group_name=f"{self._name}-rules",
            security_rules=_security_rules(args),
            **self._group.common,
            opts=self._child,
        )
        endpoint = network.ServiceEndpointPropertiesFormatArgs(service="Microsoft.Storage")
        return self._subnet(
            "nodes",
            args.cidr,
            network_security_group=network.NetworkSecurityGroupArgs(id=rules.id),
            nat_gateway=network.SubResourceArgs(id=self._nat()),
            # Nodes reach the internet only through the NAT gateway. The default depends on Azure's API version.
            default_outbound_access=False,
            service_endpoints=[endpoint] if args.storage_endpoint else None,
        )

    def _subnet(
        self, name: str, cidr: IPv4Network, *, subnet_name: str | None = None, **properties: Any
    ) -> pulumi.Output[str]:
        """Declare a subnet and return its id.

        The subnet depends on the previous one, because Azure rejects concurrent changes to a network.
        """
        self._last = subnet = network.Subnet(
            f"{self._name}-{name}",
            subnet_name=subnet_name or name,
            virtual_network_name=self._name,
            resource_group_name=self._group.name,
            address_prefix=str(cidr),
            **properties,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._last]),
        )
        return subnet.id

    def _bastion(self, name: str, cidr: IPv4Network) -> pulumi.Output[str]:
        # Azure requires the name AzureBastionSubnet.
        subnet = self._subnet("bastion", cidr, subnet_name="AzureBastionSubnet")
        address = public_address(name, self._group, self._child)
        return network.BastionHost(
            name,
            bastion_host_name=name,
            # Tunnels from native clients need the Standard SKU.
            sku=network.SkuArgs(name="Standard"),
            enable_tunneling=True,
            ip_configurations=[
                network.BastionHostIPConfigurationArgs(
                    name="bastion",
                    subnet=network.SubResourceArgs(id=subnet),
                    public_ip_address=network.SubResourceArgs(id=address.id),
                )
            ],
            **self._group.common,
            opts=self._child,
        ).id

    def _nat(self) -> pulumi.Output[str]:
        name = f"{self._name}-nat"
        return network.NatGateway(
            name,
            nat_gateway_name=name,
            sku=network.NatGatewaySkuArgs(name="Standard"),
            idle_timeout_in_minutes=_NAT_IDLE_MINUTES,
            public_ip_addresses=[network.SubResourceArgs(id=public_address(name, self._group, self._child).id)],
            **self._group.common,
            opts=self._child,
        ).id


def public_address(
    name: str, resource_group: ResourceGroup, opts: pulumi.ResourceOptions, *, idle_minutes: int | None = None
) -> network.PublicIPAddress:
    """Declare a static public address called "<name>-address".

    The address is not zonal, so that it stays the same if the machines move to a different zone.
    """
    return network.PublicIPAddress(
        f"{name}-address",
        public_ip_address_name=f"{name}-address",
        sku=network.PublicIPAddressSkuArgs(name="Standard"),
        public_ip_allocation_method="Static",
        idle_timeout_in_minutes=idle_minutes,
        **resource_group.common,
        opts=opts,
    )


def _security_rules(args: NetworkArgs) -> list[network.SecurityRuleArgs]:
    """Return the inbound rules, which allow only SSH to the head and traffic between nodes."""
    ssh_from = args.ssh_from if args.bastion_cidr is None else (args.bastion_cidr,)
    ssh = _inbound(
        "ssh",
        100,
        "Allow",
        protocol="Tcp",
        source_address_prefixes=[str(source) for source in ssh_from],
        destination_address_prefix=f"{args.head}/32",
        destination_port_range="22",
    )
    inside = str(args.cidr)
    between = _inbound("inside", 200, "Allow", source_address_prefix=inside, destination_address_prefix=inside)
    # Azure's default rules allow traffic from peered networks.
    others = _inbound("nobody-else", 4096, "Deny", source_address_prefix="*", destination_address_prefix="*")
    return [*([ssh] if ssh_from else []), between, others]


def _inbound(name: str, priority: int, access: str, **properties: Any) -> network.SecurityRuleArgs:
    """Return an inbound rule. By default, the rule covers all protocols and ports."""
    defaults = {"direction": "Inbound", "protocol": "*", "source_port_range": "*", "destination_port_range": "*"}
    return network.SecurityRuleArgs(name=name, priority=priority, access=access, **{**defaults, **properties})
