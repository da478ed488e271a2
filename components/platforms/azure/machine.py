"""An Azure virtual machine and its network interface."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute, network

from components.node.user_data import ADMIN_USER
from components.plan.plan import ClusterPlan
from components.platforms.azure.machine_facts import size_of
from components.platforms.azure.placement import PlacementKind
from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.azure.spec import AzureSpec

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
"""Changes to this property are ignored, because Azure adds the disk's name to it. The replacement trigger contains the
size of the disk."""
_SHARED_DISK_FACTS = [
    "storageProfile.dataDisks[0].diskSizeGB",
    "storageProfile.dataDisks[0].managedDisk.storageAccountType",
]
"""Changes to these properties are ignored. The program does not set these properties, but after a machine has been
stopped and started, a refresh adds them to the state."""

_BIRTH = ("osProfile.customData", "storageProfile.imageReference")
"""Changes to these properties have no effect on existing machines, so they are ignored. A machine that is replaced, for
example with `pulumi up --replace`, gets the new values, because the engine ignores the properties only when it compares
states (tests/components/platforms/test_births.py runs this with pulumi 3.250.0)."""

_LUN = 0
DATA_DISK = f"/dev/disk/azure/scsi1/lun{_LUN}"
"""Path of the shared disk on the machine. The Azure agent creates this link for SCSI disks."""


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """The facts that the machines of a group share."""

    size: str
    """Azure's name of the VM size, for example Standard_ND96isr_H100_v5."""
    image: str
    """publisher:offer:sku:version, or the id of a custom image."""
    boot_disk_gib: int
    subnet_id: pulumi.Input[str]
    admin_key: pulumi.Input[str]
    """The public SSH key that Azure requires to create a machine."""


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """One machine of a group."""

    name: str
    private_ip: str
    """The machine's fixed address in the subnet."""
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str] = ""
    """If this text changes, the machine is replaced."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Azure provides the machines of a group."""

    spot: bool = False
    reservation: str | None = None
    """Resource id of a capacity reservation group."""
    placement: PlacementKind = PlacementKind.NONE
    placement_id: pulumi.Input[str] | None = None
    """Resource id of the placement. Its kind is `placement`."""


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
) -> compute.VirtualMachine:
    """Declare a machine and its network interface, and return the machine.

    A change to identity or boot disk size replaces the machine. A change to user-data or image alone does not. The old
    machine is deleted first, because the new machine uses the same name, network interface and shared disk.
    """
    replaced = pulumi.ResourceOptions(
        replace_on_changes=_REPLACED_BY,
        replacement_trigger=[kind.boot_disk_gib, node.identity],
        ignore_changes=[
            _OS_DISK,
            *_BIRTH,
            *(_SHARED_DISK_FACTS if data_disk is not None else ()),
        ],
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
        # The console log is the only diagnostic output of a machine that SSH cannot reach.
        diagnostics_profile=compute.DiagnosticsProfileArgs(boot_diagnostics=compute.BootDiagnosticsArgs(enabled=True)),
        **resource_group.common,
        opts=pulumi.ResourceOptions.merge(opts, replaced),
    )


def image_of(plan: ClusterPlan) -> str:
    """Return the image of new machines: publisher:offer:sku:version, or the id of a custom image."""
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
    # Azure requires this path. cloud-init installs the key at the path that user-data defines.
    key = compute.SshPublicKeyArgs(key_data=kind.admin_key, path=f"/home/{ADMIN_USER}/.ssh/authorized_keys")
    return compute.OSProfileArgs(
        computer_name=node.name,
        # Azure requires an admin user. cloud-init creates all users from user-data, including this one.
        admin_username=ADMIN_USER,
        custom_data=pulumi.Output.from_input(node.user_data).apply(
            lambda text: base64.b64encode(text.encode()).decode()
        ),
        linux_configuration=compute.LinuxConfigurationArgs(
            disable_password_authentication=True,
            ssh=compute.SshConfigurationArgs(public_keys=[key]),
            # After an automatic kernel update, the installed GPU driver would not match the kernel.
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
    return compute.StorageProfileArgs(
        image_reference=_image(kind.image),
        os_disk=compute.OSDiskArgs(
            # No name is set, because the disk of a replaced machine can exist for some time after the machine is
            # deleted (hashicorp/terraform-provider-azurerm issue 23038, read 2026-11-22).
            create_option="FromImage",
            delete_option="Delete",
            caching=compute.CachingTypes.READ_ONLY,
            disk_size_gb=kind.boot_disk_gib,
            managed_disk=compute.ManagedDiskParametersArgs(storage_account_type="Premium_LRS"),
        ),
        data_disks=[shared] if data_disk is not None else None,
    )


def _image(reference: str) -> compute.ImageReferenceArgs:
    if reference.startswith("/"):
        return compute.ImageReferenceArgs(id=reference)
    publisher, offer, sku, version = reference.split(":")
    return compute.ImageReferenceArgs(publisher=publisher, offer=offer, sku=sku, version=version)
