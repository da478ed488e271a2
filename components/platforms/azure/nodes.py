"""Head, NodeGroup and Placement: a cluster's machines on Azure, with their placement and SSH host keys."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute, network

from components.node.user_data import ADMIN_USER
from components.plan.plan import ClusterPlan
from components.platforms.azure.layout import PlacementKind
from components.platforms.azure.network import HEAD_IDLE_MINUTES, ResourceGroup, public_address
from components.platforms.azure.spec import AzureSpec, size_of
from components.platforms.base import host_key_wait, moved_from
from trainyard.outputs import HOST_KEY

_REPLACED_BY = [
    "osProfile",
    "hardwareProfile",
    "priority",
    "evictionPolicy",
    "capacityReservation",
    "availabilitySet",
    "virtualMachineScaleSet",
    "proximityPlacementGroup",
    "zones",
]
"""Properties that Azure cannot change on a running machine. Without a replacement, the provider would plan an update
that Azure rejects."""

_OS_DISK = "storageProfile.osDisk"
"""Changes to this property are ignored, because Azure adds the disk's name to it. The disk's size is in the replacement
trigger instead."""
_SHARED_DISK_FACTS = [
    "storageProfile.dataDisks[0].diskSizeGB",
    "storageProfile.dataDisks[0].managedDisk.storageAccountType",
]
"""Changes to these properties are ignored. The program does not set them, but a refresh adds them to the state after a
machine has been stopped and started."""

_BIRTH = ("osProfile.customData", "storageProfile.imageReference")
"""Changes to these properties are ignored, because they would have no effect on existing machines. A machine that is
replaced, for example with `pulumi up --replace`, gets the new values, because the engine ignores the properties only
when it compares states (tests/components/platforms/test_engine.py tests this with pulumi 3.250.0)."""

_LUN = 0
DATA_DISK = f"/dev/disk/azure/scsi1/lun{_LUN}"
"""Path of the shared disk. The Azure agent creates this symbolic link for SCSI disks."""


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """Properties that all machines of a group share."""

    size: str
    """Azure's name for the VM size, for example Standard_ND96isr_H100_v5."""
    image: str
    """publisher:offer:sku:version, or a custom image's id."""
    boot_disk_gib: int
    subnet_id: pulumi.Input[str]
    admin_key: pulumi.Input[str]
    """A public SSH key, which Azure requires for new machines."""


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """Arguments for one machine of a group."""

    name: str
    private_ip: str
    """The machine's fixed address in the subnet."""
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str] = ""
    """If the identity changes, the machine is replaced."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Azure provides a group's machines."""

    spot: bool = False
    reservation: str | None = None
    """Resource id of a capacity reservation group."""
    placement: PlacementKind = PlacementKind.NONE
    placement_id: pulumi.Input[str] | None = None
    """The placement's resource id."""


ON_DEMAND = Capacity()


def machine(  # noqa: PLR0913  (the parts of a machine that differ between the head, the workers and the builder)
    node: NodeArgs,
    kind: MachineType,
    resource_group: ResourceGroup,
    opts: pulumi.ResourceOptions,
    *,
    capacity: Capacity = ON_DEMAND,
    public_address: pulumi.Input[str] | None = None,
    data_disk: pulumi.Input[str] | None = None,
    identity: pulumi.Input[str] | None = None,
) -> compute.VirtualMachine:
    """Declare a machine and its network interface, and return the machine.

    The machine is replaced if its identity or the size of its boot disk changes, but not if only its user-data or image
    changes. The old machine is deleted first, because the new one has the same name, network interface and shared disk.
    """
    replaced = pulumi.ResourceOptions(
        replace_on_changes=_REPLACED_BY,
        replacement_trigger=[kind.boot_disk_gib, node.identity],
        ignore_changes=[_OS_DISK, *_BIRTH, *(_SHARED_DISK_FACTS if data_disk is not None else ())],
        delete_before_replace=True,
    )
    card = _card(node, kind, resource_group, public_address, opts)
    within = None if capacity.placement_id is None else compute.SubResourceArgs(id=capacity.placement_id)
    in_availability_set = capacity.placement is PlacementKind.AVAILABILITY_SET
    return compute.VirtualMachine(
        node.name,
        vm_name=node.name,
        # Azure rejects a zone for a machine in an availability set.
        zones=None if in_availability_set else resource_group.zones,
        hardware_profile=compute.HardwareProfileArgs(vm_size=kind.size),
        priority="Spot" if capacity.spot else None,
        # A deallocated machine keeps its disk, name and address, so a later start restores the same node.
        eviction_policy="Deallocate" if capacity.spot else None,
        billing_profile=compute.BillingProfileArgs(max_price=-1) if capacity.spot else None,
        capacity_reservation=compute.CapacityReservationProfileArgs(
            capacity_reservation_group=compute.SubResourceArgs(id=capacity.reservation)
        )
        if capacity.reservation
        else None,
        availability_set=within if in_availability_set else None,
        virtual_machine_scale_set=within if capacity.placement is PlacementKind.SCALE_SET else None,
        proximity_placement_group=within if capacity.placement is PlacementKind.PROXIMITY else None,
        os_profile=_system(node, kind),
        network_profile=compute.NetworkProfileArgs(
            network_interfaces=[compute.NetworkInterfaceReferenceArgs(id=card.id, primary=True, delete_option="Detach")]
        ),
        storage_profile=_disks(kind, data_disk),
        identity=None
        if identity is None
        else compute.VirtualMachineIdentityArgs(
            type=compute.ResourceIdentityType.USER_ASSIGNED, user_assigned_identities=[identity]
        ),
        # If SSH cannot reach a machine, the console log is its only diagnostic output.
        diagnostics_profile=compute.DiagnosticsProfileArgs(boot_diagnostics=compute.BootDiagnosticsArgs(enabled=True)),
        **resource_group.common,
        opts=pulumi.ResourceOptions.merge(opts, replaced),
    )


def image_of(plan: ClusterPlan) -> str:
    """Return the image that new machines boot: publisher:offer:sku:version, or a custom image's id."""
    return plan.platform_spec(AzureSpec).image_reference(str(plan.image.reference))


def _card(
    node: NodeArgs,
    kind: MachineType,
    resource_group: ResourceGroup,
    public_address: pulumi.Input[str] | None,
    opts: pulumi.ResourceOptions,
) -> network.NetworkInterface:
    name = f"{node.name}-nic"
    public = network.PublicIPAddressArgs(id=public_address) if public_address is not None else None
    return network.NetworkInterface(
        name,
        network_interface_name=name,
        enable_accelerated_networking=size_of(kind.size).accelerated,
        ip_configurations=[
            network.NetworkInterfaceIPConfigurationArgs(
                name="private",
                subnet=network.SubnetArgs(id=kind.subnet_id),
                private_ip_allocation_method="Static",
                private_ip_address=node.private_ip,
                public_ip_address=public,
            )
        ],
        **resource_group.common,
        opts=opts,
    )


def _system(node: NodeArgs, kind: MachineType) -> compute.OSProfileArgs:
    # Azure requires this path, but cloud-init installs the key at the path that user-data defines.
    key = compute.SshPublicKeyArgs(key_data=kind.admin_key, path=f"/home/{ADMIN_USER}/.ssh/authorized_keys")
    return compute.OSProfileArgs(
        computer_name=node.name,
        # Azure requires an admin user, although cloud-init creates it and all other users from user-data.
        admin_username=ADMIN_USER,
        custom_data=pulumi.Output.from_input(node.user_data).apply(
            lambda text: base64.b64encode(text.encode()).decode()
        ),
        linux_configuration=compute.LinuxConfigurationArgs(
            disable_password_authentication=True,
            ssh=compute.SshConfigurationArgs(public_keys=[key]),
            # After an automatic kernel update, the GPU driver would not match the kernel.
            patch_settings=compute.LinuxPatchSettingsArgs(patch_mode="ImageDefault", assessment_mode="ImageDefault"),
            provision_vm_agent=True,
        ),
    )


def _disks(kind: MachineType, data_disk: pulumi.Input[str] | None) -> compute.StorageProfileArgs:
    shared = compute.DataDiskArgs(
        lun=_LUN,
        create_option="Attach",
        delete_option="Detach",
        caching=compute.CachingTypes.NONE,
        managed_disk=compute.ManagedDiskParametersArgs(id=data_disk),
    )
    if kind.image.startswith("/"):
        image = compute.ImageReferenceArgs(id=kind.image)
    else:
        publisher, offer, sku, version = kind.image.split(":")
        image = compute.ImageReferenceArgs(publisher=publisher, offer=offer, sku=sku, version=version)
    return compute.StorageProfileArgs(
        image_reference=image,
        os_disk=compute.OSDiskArgs(
            # The disk gets no fixed name, because a deleted machine's disk can remain for some time and block the name
            # (hashicorp/terraform-provider-azurerm issue 23038, read 2026-11-22).
            create_option="FromImage",
            delete_option="Delete",
            caching=compute.CachingTypes.READ_ONLY,
            disk_size_gb=kind.boot_disk_gib,
            managed_disk=compute.ManagedDiskParametersArgs(storage_account_type="Premium_LRS"),
        ),
        data_disks=[shared] if data_disk is not None else None,
    )


_FAULT_DOMAINS = _UPDATE_DOMAINS = 1
"""With more fault domains, Azure spreads an InfiniBand network's machines over more racks, so it finds capacity less
often. Azure/azurehpc@6dac1ef9:pyazhpc/arm.py also creates availability sets with one fault domain and one update
domain. With one fault domain, Azure requires one update domain (MicrosoftDocs/azure-docs pull request 121752; both read
2026-11-22)."""
_FIXED = [
    "platformFaultDomainCount",
    "platformUpdateDomainCount",
    "singlePlacementGroup",
    "orchestrationMode",
    "zones",
    "intent",
]
"""Properties that Azure cannot update in place."""


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments for a placement. `size` is the machines' VM size."""

    resource_group: ResourceGroup
    kind: PlacementKind
    name: str
    """The resource's name in Azure."""
    size: str


class Placement(pulumi.ComponentResource):
    """A node group's availability set, flexible scale set or proximity placement group."""

    id: pulumi.Output[str]
    """Resource id, which is the `placement_id` of the group's machines."""

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Placement", name, None, opts)
        # The old resource is deleted first, because the new one has the same name.
        child = pulumi.ResourceOptions(
            parent=self, replace_on_changes=_FIXED, delete_before_replace=True, aliases=moved_from(opts)
        )
        common = {**args.resource_group.common, "opts": child}
        zones = args.resource_group.zones
        made: pulumi.CustomResource
        match args.kind:
            case PlacementKind.AVAILABILITY_SET:
                made = compute.AvailabilitySet(
                    args.name,
                    availability_set_name=args.name,
                    sku=compute.SkuArgs(name="Aligned"),
                    platform_fault_domain_count=_FAULT_DOMAINS,
                    platform_update_domain_count=_UPDATE_DOMAINS,
                    **common,
                )
            case PlacementKind.SCALE_SET:
                # Without a profile, machines join the scale set one by one, each with its own name and address. A new
                # machine can join only if the set is flexible and its singlePlacementGroup is false. Without a profile,
                # the default is null (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/
                # virtual-machine-scale-sets/virtual-machine-scale-sets-attach-detach-vm.md, read 2026-11-22). A zonal
                # scale set supports only one fault domain.
                made = compute.VirtualMachineScaleSet(
                    args.name,
                    vm_scale_set_name=args.name,
                    orchestration_mode="Flexible",
                    platform_fault_domain_count=_FAULT_DOMAINS,
                    single_placement_group=False,
                    zones=zones,
                    **common,
                )
            case PlacementKind.PROXIMITY:
                # Azure accepts a zone only together with the group's machine sizes.
                sizes = compute.ProximityPlacementGroupPropertiesIntentArgs(vm_sizes=[args.size]) if zones else None
                made = compute.ProximityPlacementGroup(
                    args.name,
                    proximity_placement_group_name=args.name,
                    proximity_placement_group_type="Standard",
                    zones=zones,
                    intent=sizes,
                    **common,
                )
            case PlacementKind.NONE:
                raise ValueError("a group without placement needs no component")
        self.id = made.id
        self.register_outputs({"id": self.id})


_KEY_COMMAND = "trainyard-host-key"
_TOKEN = "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine"  # noqa: S105  (a function's name)
_SCRIPT_SECONDS = 900
"""Timeout of the run command. cloud-init creates the key in the first minute, but the VM agent can start later."""
_PAUSE_SECONDS = 10
_SCRIPT = """\
key=/etc/ssh/ssh_host_ed25519_key.pub
i=0
while [ ! -s $key ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 1; done
cut -d ' ' -f 1,2 $key
"""


def host_key(machine: compute.VirtualMachine, name: str, resource_group: ResourceGroup) -> pulumi.Output[str]:
    """Return the host key ("ssh-ed25519 AAAA..."), or "" if the run command has no result.

    A run command reads the key, so that `up` receives it through Azure's API instead of over SSH. Azure can
    create, change or delete a run command only while the machine is running. Otherwise, it returns the error "Cannot
    modify extensions in the VM when the VM is not running" (terraform-provider-azurerm issues 477 and 6098, read
    2026-11-22). Therefore a change to this program does not change the run command, and `destroy` does not delete it.
    """
    command = compute.VirtualMachineRunCommandByVirtualMachine(
        f"{name}-host-key",
        run_command_name=_KEY_COMMAND,
        vm_name=machine.name,
        source=compute.VirtualMachineRunCommandScriptSourceArgs(script=_SCRIPT),
        async_execution=False,
        timeout_in_seconds=_SCRIPT_SECONDS,
        # A failure is not an error here: components/cluster reports all machines without a host key in one message.
        treat_failure_as_deployment_failure=False,
        **resource_group.common,
        opts=pulumi.ResourceOptions(
            parent=machine,
            replace_with=[machine],
            delete_before_replace=True,
            retain_on_delete=True,
            ignore_changes=["source", "asyncExecution", "timeoutInSeconds", "treatFailureAsDeploymentFailure", "tags"],
        ),
    )
    options = pulumi.InvokeOptions(parent=machine)
    # The id is an input, so that the key is not read before the run command exists.
    facts = pulumi.Output.all(command.id, resource_group.name, machine.time_created)
    return facts.apply(lambda known: _read_key(name, str(known[1]), known[2], options))


async def _read_key(name: str, group: str, created: str | None, options: pulumi.InvokeOptions) -> str:
    """Return the host key, or "" if it cannot be read.

    During `up`, a new machine's key is read repeatedly until it is available or the time limit has passed. In all other
    cases, the key is read once. The command's output is in the instance view (REST API, "Virtual Machine Run Commands -
    Get By Virtual Machine", read 2026-11-22), but not in the resource's outputs.
    """
    where = {"resourceGroupName": group, "vmName": name, "runCommandName": _KEY_COMMAND, "expand": "instanceView"}
    for attempt in range(1 + host_key_wait(created) // _PAUSE_SECONDS):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        if key := await _invoke(where, options):
            return key
    return ""


async def _invoke(where: dict[str, str], options: pulumi.InvokeOptions) -> str:
    """Return the host key, or "" after any error, because `up` must not fail if a machine is deallocated.

    The SDK's typed function is not used, because its output would fail the program after an error, even if the error is
    handled (pulumi 3.250.0, output.py, Output._track; read 2026-11-24).
    """
    try:
        answer = await pulumi.runtime.invoke_async(_TOKEN, where, options)
    except Exception as error:  # the SDK raises a plain Exception
        pulumi.log.debug(f"the SSH host key of {where['vmName']} cannot be read: {error}", options.parent)
        return ""
    view = answer.get("instanceView") or {}
    return key_in(str(view.get("output") or ""))


def key_in(output: str) -> str:
    """Return the public key in the output, or "" if it contains no key or several keys."""
    found = {line.strip() for line in output.splitlines() if HOST_KEY.fullmatch(line.strip())}
    return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True, kw_only=True)
class HeadArgs:
    """Arguments for a head node."""

    resource_group: ResourceGroup
    node: NodeArgs
    machine: MachineType
    is_public: bool = False
    """Whether the head has a static public address."""
    data_disk_id: pulumi.Input[str] | None = None
    """Resource id of the data disk with the shared files, or None if they are stored elsewhere."""
    identity_id: pulumi.Input[str] | None = None
    """Resource id of the identity that starts and stops machines, or None if no group is elastic."""


class Head(pulumi.ComponentResource):
    """The head node: a machine with a fixed private address and, optionally, a public address and a data disk."""

    machine: compute.VirtualMachine
    public_ip: pulumi.Output[str] | None = None

    def __init__(self, name: str, args: HeadArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Head", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        address = None
        if args.is_public:
            address = public_address(args.node.name, args.resource_group, child, idle_minutes=HEAD_IDLE_MINUTES)
            self.public_ip = address.ip_address.apply(str)
        self.machine = machine(
            args.node,
            args.machine,
            args.resource_group,
            child,
            public_address=address.id if address is not None else None,
            data_disk=args.data_disk_id,
            identity=args.identity_id,
        )
        self.register_outputs({"name": args.node.name, "vmId": self.machine.vm_id, "publicIp": self.public_ip})


@dataclass(frozen=True, kw_only=True)
class NodeGroupArgs:
    """Arguments for a node group. All machines have the same type and capacity."""

    resource_group: ResourceGroup
    nodes: Sequence[NodeArgs]
    machine: MachineType
    capacity: Capacity = ON_DEMAND


class NodeGroup(pulumi.ComponentResource):
    """Machines of one type with fixed private addresses in a subnet."""

    machines: Mapping[str, compute.VirtualMachine]
    """Mapping from name to machine, in the order of the arguments."""

    def __init__(self, name: str, args: NodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:NodeGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        self.machines = {
            node.name: machine(node, args.machine, args.resource_group, child, capacity=args.capacity)
            for node in args.nodes
        }
        self.register_outputs({"names": list(self.machines), "vmIds": [made.vm_id for made in self.machines.values()]})
