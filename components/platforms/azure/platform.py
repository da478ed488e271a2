"""AzurePlatform creates a plan's machines in Azure."""

from __future__ import annotations

import pulumi
import pulumi_azure_native
from pulumi_azure_native import compute, network, resources

from components.node.parameters import SharedFiles
from components.node.user_data import ADMIN_USER
from components.plan.plan import HostPlan, Role
from components.platforms.azure.aliases import without_former_types
from components.platforms.azure.host_keys import host_key
from components.platforms.azure.machine import DATA_DISK, MachineArgs, image_below, image_of, machine
from components.platforms.azure.network import HEAD_IDLE_MINUTES, Network, public_address
from components.platforms.azure.placement import PlacementKind, placement_of
from components.platforms.azure.placement_resources import placement_resource
from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.azure.spec import AzureSpec
from components.platforms.azure.storage import azure_files, head_disk, netapp_files
from components.platforms.azure.tunnel import tunnel_command
from components.platforms.base import Host, Platform, PlatformArgs, ssh_address


class AzurePlatform(Platform):
    """A resource group with a network, placement resources, one machine per host, and the shared storage."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        self._plan, self._args = args.plan, args
        self._spec = spec = args.plan.platform_spec(AzureSpec)
        provider = pulumi_azure_native.Provider(
            f"{name}-provider",
            subscription_id=spec.subscription,
            location=spec.region,
            opts=pulumi.ResourceOptions(parent=opts.parent if opts else None),
        )
        own = pulumi.ResourceOptions(providers=[provider], transformations=[without_former_types])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self.image = image_of(args.plan)
        self._child = pulumi.ResourceOptions(parent=self)
        self._group = self._make_group()
        self._network = Network(args.plan, self._group, self._child)
        self._placements = self._make_placements()
        self._public: network.PublicIPAddress | None = None
        if args.plan.access.via == "public":
            head = args.plan.head.name
            self._public = public_address(head, self._group, self._child, idle_minutes=HEAD_IDLE_MINUTES)
        self._data_disk: compute.Disk | None = None
        self.shared = self._make_shared_storage()
        self._user_data = args.user_data(self.shared)
        self.hosts = [self._host(host, self._machine(host)) for host in args.plan.hosts]
        self.register_outputs({})

    def _make_group(self) -> ResourceGroup:
        name = f"{self._plan.name}-trainyard"
        group = resources.ResourceGroup(
            name,
            resource_group_name=name,
            location=self._spec.region,
            tags={"trainyard-cluster": self._plan.name},
            opts=self._child,
        )
        return ResourceGroup(
            cluster=self._plan.name, name=group.name, id=group.id, region=self._spec.region, zone=self._spec.zone
        )

    def _make_placements(self) -> dict[str, tuple[PlacementKind, pulumi.Output[str]]]:
        """Declare the placement resources. Returns the kind and the id by node group."""
        made: dict[str, tuple[PlacementKind, pulumi.Output[str]]] = {}
        for name, group in self._plan.groups.items():
            kind = placement_of(self._plan, name).kind
            if found := placement_resource(kind, name, group.machine, self._group, self):
                made[name] = (kind, found)
        return made

    def _make_shared_storage(self) -> pulumi.Input[SharedFiles]:
        """Declare the shared storage. Returns the location of the shared files."""
        wanted = self._plan.storage
        if wanted.kind == "external":
            return SharedFiles(source=f"{wanted.address}:{wanted.path}", nfs="4.1")
        if wanted.kind == "head_nfs":
            self._data_disk = head_disk(self._plan, self._group, self)
            return SharedFiles(disk=DATA_DISK)
        declare = azure_files if wanted.kind == "azure_files" else netapp_files
        return declare(self._plan, self._network, self._group, self)

    def _machine(self, host: HostPlan) -> compute.VirtualMachine:
        is_head = host.role is Role.HEAD
        args = MachineArgs(
            host=host,
            plan=self._plan,
            subnet=self._network.nodes,
            birth=self._user_data.apply(lambda render: render(host)),
            is_rolled=host.name in self._args.rolled,
            admin_key=self._args.admin_key,
            placement=self._placements.get(host.group or ""),
            public_address=self._public.id if self._public is not None and is_head else None,
            data_disk=self._data_disk.id if self._data_disk is not None and is_head else None,
        )
        return machine(args, self._group, self._child)

    def _host(self, host: HostPlan, made: compute.VirtualMachine) -> Host:
        is_head = host.role is Role.HEAD
        bastion = self._network.bastion if is_head else None
        public = self._public.ip_address.apply(str) if self._public is not None else None
        address, port = ssh_address(self._plan, host, public, self._spec.bastion_port)
        return Host(
            plan=host,
            address=address,
            port=port,
            tunnel=tunnel_command(bastion, made.id) if bastion is not None else None,
            user=ADMIN_USER,
            host_key=host_key(made, host.name, self._group),
            machine_id=made.vm_id,
            image=image_below(made),
            data_disk=self._data_disk.unique_id if self._data_disk is not None and is_head else None,
            through_head=not is_head,
        )
