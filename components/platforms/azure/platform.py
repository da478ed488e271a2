"""AzurePlatform: a plan's machines in Azure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import ClassVar

import pulumi
import pulumi_azure_native
from pulumi_azure_native import resources

from components.cloud_init import ADMIN_USER, SharedFiles
from components.packing import pack
from components.plan import HostPlan, Role
from components.platforms.azure.aliases import without_former_types
from components.platforms.azure.containers import Kind, container_of
from components.platforms.azure.holders import holder
from components.platforms.azure.hostkeys import host_key
from components.platforms.azure.layout import bastion_subnet, netapp_subnet
from components.platforms.azure.machine import MachineArgs, machine
from components.platforms.azure.network import Network, NetworkArgs, head_address
from components.platforms.azure.site import Site
from components.platforms.azure.spec import Spec
from components.platforms.azure.storage import Shared, StorageArgs, head_disk
from components.platforms.azure.tunnel import PROGRAM, tunnel_command
from components.platforms.base import Host, Platform, PlatformArgs, Tunnel
from components.platforms.lean import keeping
from components.platforms.narrow import narrow_import
from components.spec import ClusterSpec

with narrow_import("pulumi_azure_native.compute"):
    from pulumi_azure_native.compute.virtual_machine import VirtualMachine

_READ = {
    "azure-native:compute:VirtualMachine": ("name", "time_created", "vm_id"),
    "azure-native:compute:VirtualMachineRunCommandByVirtualMachine": (),
    "azure-native:network:NetworkInterface": (),
}
"""What is read of the resources that every node has."""


class AzurePlatform(Platform):
    """A resource group with a network, containers for fabrics, one machine per host, and what the stack shares."""

    user_data_limit: ClassVar[int] = 65535
    """Bytes of custom data before it becomes base64; the SDK's words on osProfile.customData."""
    largest_disk_gib: ClassVar[int | None] = 32767
    """Premium SSD (Microsoft, "Azure managed disk types")."""
    shared_disk: ClassVar[bool] = True
    billed: ClassVar[Mapping[str, str]] = {
        "azure-native:compute:VirtualMachine": "machine",
        "azure-native:compute:Disk": "disk",
        "azure-native:netapp:CapacityPool": "NetApp capacity pool",
        "azure-native:storage:FileShare": "file share",
        "azure-native:network:BastionHost": "Bastion",
        "azure-native:network:NatGateway": "NAT gateway",
        "azure-native:network:PublicIPAddress": "public address",
    }
    storage_types: ClassVar[frozenset[str]] = frozenset(
        {"azure-native:compute:Disk", "azure-native:netapp:CapacityPool", "azure-native:storage:FileShare"}
    )
    gateway_types: ClassVar[frozenset[str]] = frozenset({"azure-native:network:BastionHost"})

    @staticmethod
    def wire_user_data(text: str) -> bytes:
        """Return it as gzip, which cloud-init knows by its first bytes: plain, it would be two thirds of the limit."""
        return pack(text)

    @staticmethod
    def tunnel(cluster: ClusterSpec) -> Tunnel | None:
        """Return Bastion's tunnel, if the head has no public address."""
        if cluster.access.via != "bastion" or not isinstance(cluster.platform, Spec):
            return None
        return Tunnel(program=PROGRAM, port=cluster.platform.bastion_port, option="cluster.platform.bastion_port")

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        if not isinstance(args.spec, Spec):
            raise TypeError(f"the Azure platform cannot take a {type(args.spec).__name__}")
        self._spec, self._plan, self._args = args.spec, args.plan, args
        provider = pulumi_azure_native.Provider(
            f"{name}-provider",
            subscription_id=args.spec.subscription,
            location=args.spec.region,
            opts=pulumi.ResourceOptions(parent=opts.parent if opts else None),
        )
        own = pulumi.ResourceOptions(providers=[provider], transformations=[without_former_types, keeping(_READ)])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._site = self._make_site()
        self._network = self._make_network()
        self._holders = self._make_holders()
        self._public = self._make_public_address()
        self._shared = self._make_shared_storage()
        self._user_data = args.user_data(self._shared.files)
        self.hosts = (self._host(host, self._machine(host)) for host in args.plan.hosts)
        self.register_outputs({})

    def _make_site(self) -> Site:
        name = f"{self._plan.name}-trainyard"
        group = resources.ResourceGroup(
            name,
            resource_group_name=name,
            location=self._spec.region,
            tags={"trainyard-cluster": self._plan.name},
            opts=self._child(),
        )
        return Site(
            cluster=self._plan.name,
            group=group.name,
            group_id=group.id,
            region=self._spec.region,
            zone=self._spec.zone,
        )

    def _make_network(self) -> Network:
        cluster, services = self._args.cluster, self._spec.services_cidr
        bastion = bastion_subnet(services) if cluster.access.via == "bastion" else None
        kind = cluster.storage.shared.kind
        args = NetworkArgs(
            cidr=self._plan.network,
            head=self._plan.head.private_ip,
            ssh_from=(bastion,) if bastion else cluster.access.allow_ssh_from,
            bastion=bastion,
            netapp=netapp_subnet(services) if kind == "azure_netapp" else None,
            storage_endpoint=kind == "azure_files",
        )
        return Network(f"{self._plan.name}-network", self._site, args, self._child())

    def _make_holders(self) -> dict[str, tuple[Kind, pulumi.Output[str]]]:
        made: dict[str, tuple[Kind, pulumi.Output[str]]] = {}
        for name, group in self._args.cluster.nodes.items():
            kind = container_of(group, self._spec.zone).kind
            if found := holder(kind, name, group.machine, self._site, self._child()):
                made[name] = (kind, found)
        return made

    def _make_public_address(self) -> tuple[pulumi.Output[str], pulumi.Output[str]] | None:
        """Id and address of the head's public address, where it has one."""
        if self._args.cluster.access.via != "public":
            return None
        made = head_address(self._plan.head.name, self._site, self._child())
        return made.id, made.ip_address.apply(str)

    def _make_shared_storage(self) -> Shared:
        """Declare what the stack shares, and say where hosts find it."""
        wanted = self._args.cluster.storage.shared
        if wanted.kind == "external":
            return Shared(files=SharedFiles(source=f"{wanted.address}:{wanted.path}", nfs="4.1"))
        args = StorageArgs(
            size_gib=wanted.size_gib,
            protect=self._spec.protect_storage,
            head=self._plan.head.private_ip,
            cidr=self._plan.network,
            subnet=self._network.nodes,
            netapp=self._network.netapp,
            service_level=self._spec.netapp.service_level,
        )
        if wanted.kind == "head_nfs":
            return head_disk(args, self._site, self)
        # Each brings a part of the SDK that other stacks have no use for.
        if wanted.kind == "azure_files":
            from components.platforms.azure.files import azure_files  # noqa: PLC0415

            return azure_files(args, self._site, self)
        from components.platforms.azure.netapp import netapp_files  # noqa: PLC0415

        return netapp_files(args, self._site, self)

    def _machine(self, host: HostPlan) -> VirtualMachine:
        is_head = host.role is Role.HEAD
        args = MachineArgs(
            host=host,
            image=self._spec.image_reference(str(self._plan.image.reference)),
            boot_disk_gib=self._spec.boot_disk_gib,
            subnet=self._network.nodes,
            custom_data=self._custom_data(host),
            admin_key=self._args.admin_key,
            container=self._holders.get(host.group or ""),
            reservation=self._args.cluster.nodes[host.group].capacity.reservation if host.group else None,
            public_address=self._public[0] if self._public and is_head else None,
            data_disk=self._shared.disk if is_head else None,
        )
        return machine(args, self._site, self._child())

    def _custom_data(self, host: HostPlan) -> pulumi.Output[str]:
        return self._user_data.apply(lambda render: base64.b64encode(self.wire_user_data(render(host))).decode())

    def _host(self, host: HostPlan, made: VirtualMachine) -> Host:
        address, port = self._reached(host)
        bastion = self._network.bastion if host.role is Role.HEAD else None
        return Host(
            plan=host,
            address=address,
            port=port,
            tunnel=tunnel_command(bastion, made.id) if bastion is not None else None,
            user=ADMIN_USER,
            host_key=host_key(made, host.name, self._site),
            machine_id=made.vm_id,
            through_head=host.role is not Role.HEAD,
        )

    def _reached(self, host: HostPlan) -> tuple[pulumi.Input[str], int]:
        if host.role is Role.HEAD and self._public is not None:
            return self._public[1], 22
        if host.role is Role.HEAD and self._args.cluster.access.via == "bastion":
            return "127.0.0.1", self._spec.bastion_port
        return str(host.private_ip), 22

    def _child(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self)
