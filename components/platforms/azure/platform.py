"""AzurePlatform creates a plan's machines in Azure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pulumi
import pulumi_azure_native
from pulumi_azure_native import resources

from components.node.parameters import SharedFiles
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.azure.facts import PROGRAM
from components.platforms.azure.layout import PlacementKind, placement_of
from components.platforms.azure.network import Network, NetworkArgs, ResourceGroup
from components.platforms.azure.nodes import (
    Capacity,
    Head,
    HeadArgs,
    MachineType,
    NodeArgs,
    NodeGroup,
    NodeGroupArgs,
    Placement,
    PlacementArgs,
    host_key,
    image_of,
)
from components.platforms.azure.power import power_identity
from components.platforms.azure.spec import AzureSpec
from components.platforms.azure.storage import SharedStorage, SharedStorageArgs
from components.platforms.base import Platform, PlatformArgs, cloud_hosts


def without_former_types(
    args: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Remove aliases that set only a type, because only programs that once used a versioned Azure type need them.

    The SDK starts ten asyncio tasks for each alias. In a preview of 512 nodes, aliases accounted for 80 % of the time
    and the memory.
    """

    def sets_only_type(alias: pulumi.Input[str | pulumi.Alias]) -> bool:
        if not isinstance(alias, pulumi.Alias):
            return False
        # A property that was not set contains an ellipsis.
        return {name for name, value in vars(alias).items() if value is not ...} == {"type_"}

    if not args.opts.aliases:
        return None
    options = pulumi.ResourceOptions.merge(args.opts, None)
    options.aliases = [alias for alias in args.opts.aliases if not sets_only_type(alias)]
    return pulumi.ResourceTransformationResult(args.props, options)


def own_options(name: str, spec: AzureSpec, parent: pulumi.Resource | None = None) -> pulumi.ResourceOptions:
    """Return options that give a component its own provider for the stack's subscription and region."""
    provider = pulumi_azure_native.Provider(
        f"{name}-provider",
        subscription_id=spec.subscription,
        location=spec.region,
        opts=pulumi.ResourceOptions(parent=parent),
    )
    return pulumi.ResourceOptions(providers=[provider], transformations=[without_former_types])


def tunnel_command(bastion: pulumi.Output[str], machine: pulumi.Output[str]) -> pulumi.Output[Sequence[str]]:
    """Return the command, in which "{port}" stands for the local port. `bastion` and `machine` are resource ids.

    The command names the Bastion's subscription, because the default subscription of `az login` can be a different one.
    For the command's options, see Azure/azure-cli-extensions@0928ba2:src/bastion/azext_bastion/_params.py (read
    2026-11-22). The command is part of the `bastion` extension, which az installs without a prompt if no terminal is
    attached (Azure/azure-cli@0363f19:src/azure-cli-core/azure/cli/core/extension/dynamic_install.py).
    """

    def command(bastion: str, machine: str) -> Sequence[str]:
        # /subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Network/bastionHosts/NAME
        _, _, subscription, _, group, *_, name = bastion.split("/")
        return (
            PROGRAM,
            *("network", "bastion", "tunnel"),
            *("--subscription", subscription, "--resource-group", group, "--name", name),
            *("--target-resource-id", machine, "--resource-port", "22", "--port", "{port}"),
        )

    return pulumi.Output.all(bastion, machine).apply(lambda ids: command(*ids))


def wake_command(machine: pulumi.Output[str]) -> pulumi.Output[Sequence[str]]:
    """Return the command that starts the machine with this resource id (Microsoft, "az vm start", read 2026-11-27)."""
    return machine.apply(lambda id: (PROGRAM, "vm", "start", "--ids", id))


class AzurePlatform(Platform):
    """A resource group with a network, the shared storage, the head, and the node groups with their placements."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        plan, spec = args.plan, args.plan.platform_spec(AzureSpec)
        self._plan, self._spec = plan, spec
        own = own_options(name, spec, opts.parent if opts else None)
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._child = pulumi.ResourceOptions(parent=self)
        self._group = resource_group(spec, f"{plan.name}-trainyard", plan.name, self._child)
        self._network = Network(f"{plan.name}-network", network_args(plan, self._group), self._child)
        storage = self._storage()
        self.shared = storage if isinstance(storage, SharedFiles) else storage.files
        disk = storage if isinstance(storage, SharedStorage) else None
        self._births = args.births(self.shared)
        # Azure requires a key for the admin user. User-data permits the same key (components/node/user_data.py).
        self._admin_key = args.access.apply(lambda keys: keys.authority)
        head = Head(
            f"{plan.name}-head",
            HeadArgs(
                resource_group=self._group,
                node=self._node(plan.head),
                machine=self._machine(plan.head),
                is_public=plan.access.via == "public",
                data_disk_id=disk.disk_id if disk else None,
                identity_id=power_identity(plan.name, self._group, self._child) if plan.is_elastic else None,
            ),
            self._child,
        )
        machines = {plan.head.name: head.machine}
        for group in plan.groups:
            machines |= self._node_group(group).machines
        bastion = self._network.bastion
        self.hosts = cloud_hosts(
            plan,
            {name: (made.vm_id, host_key(made, name, self._group)) for name, made in machines.items()},
            public_ip=head.public_ip,
            tunnel=None if bastion is None else (tunnel_command(bastion, head.machine.id), spec.bastion_port),
            data_disk=disk.disk_unique_id if disk else None,
        )
        if plan.idle_minutes is not None:
            self.hosts[0] = replace(self.hosts[0], wake=wake_command(head.machine.id))
        self.register_outputs({"resourceGroup": self._group.name, "machines": list(machines)})

    def _storage(self) -> SharedStorage | SharedFiles:
        wanted = self._plan.storage
        if wanted.kind == "external":
            return SharedFiles(source=f"{wanted.address}:{wanted.path}", nfs="4.1")
        assert wanted.kind != "filestore"  # noqa: S101  (a check refuses it; for the type checker)
        subnets = {"azure_files": self._network.nodes, "azure_netapp": self._network.netapp}
        return SharedStorage(
            f"{self._plan.name}-storage",
            SharedStorageArgs(
                resource_group=self._group,
                name=self._plan.name,
                kind=wanted.kind,
                size_gib=wanted.size_gib,
                protect=self._spec.protect_storage,
                subnet_id=subnets.get(wanted.kind),
                head=str(self._plan.head.private_ip),
                clients=str(self._plan.network),
                service_level=self._spec.netapp.service_level,
            ),
            self._child,
        )

    def _machine(self, host: HostPlan) -> MachineType:
        return machine_type(self._plan, host, self._network.nodes, self._admin_key)

    def _node(self, host: HostPlan) -> NodeArgs:
        birth = self._births[host.name]
        private_ip = str(host.private_ip)
        return NodeArgs(name=host.name, private_ip=private_ip, user_data=birth.user_data, identity=birth.identity)

    def _node_group(self, name: str) -> NodeGroup:
        group, hosts = self._plan.groups[name], self._plan.group(name)
        (kind, _), placement = placement_of(self._plan, name), None
        if kind is not PlacementKind.NONE:
            wanted = PlacementArgs(
                resource_group=self._group, kind=kind, name=f"{self._plan.name}-{name}", size=group.machine
            )
            placement = Placement(f"{self._plan.name}-{name}-placement", wanted, self._child)
        return NodeGroup(
            f"{self._plan.name}-{name}",
            NodeGroupArgs(
                resource_group=self._group,
                nodes=[self._node(host) for host in hosts],
                machine=self._machine(hosts[0]),
                capacity=Capacity(
                    spot=group.capacity.kind == "spot",
                    reservation=group.capacity.reservation,
                    placement=kind,
                    placement_id=placement.id if placement else None,
                ),
            ),
            self._child,
        )


def resource_group(
    spec: AzureSpec, name: str, owner: str, opts: pulumi.ResourceOptions, label: str = "trainyard-cluster"
) -> ResourceGroup:
    """Declare a resource group for the cluster or image with the name `owner`. The tag `label` contains this name."""
    group = resources.ResourceGroup(
        name, resource_group_name=name, location=spec.region, tags={label: owner}, opts=opts
    )
    return ResourceGroup(cluster=owner, name=group.name, id=group.id, region=spec.region, zone=spec.zone)


def machine_type(
    plan: ClusterPlan, host: HostPlan, subnet_id: pulumi.Input[str], admin_key: pulumi.Input[str]
) -> MachineType:
    """Return the properties that a host's machine shares with the other machines in its group."""
    return MachineType(
        size=host.machine.name,
        image=image_of(plan),
        boot_disk_gib=plan.platform_spec(AzureSpec).boot_disk_gib,
        subnet_id=subnet_id,
        admin_key=admin_key,
    )


def network_args(plan: ClusterPlan, group: ResourceGroup) -> NetworkArgs:
    """Return the arguments for a network that suits the plan's access and storage."""
    for_bastion, for_netapp = plan.platform_spec(AzureSpec).service_subnets()
    return NetworkArgs(
        resource_group=group,
        name=plan.name,
        cidr=plan.network,
        head=plan.head.private_ip,
        ssh_from=plan.access.allow_ssh_from,
        bastion_cidr=for_bastion if plan.access.via == "bastion" else None,
        netapp_cidr=for_netapp if plan.storage.kind == "azure_netapp" else None,
        storage_endpoint=plan.storage.kind == "azure_files",
    )
