"""One machine of the cluster in Azure: its network card and the virtual machine."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from components.cloud_init import ADMIN_USER
from components.plan import HostPlan
from components.platforms.azure.containers import Kind
from components.platforms.azure.site import Site
from components.platforms.azure.sizes import size_of
from components.platforms.narrow import narrow_import

with narrow_import("pulumi_azure_native.compute", "pulumi_azure_native.network"):
    from pulumi_azure_native.compute._enums import CachingTypes
    from pulumi_azure_native.compute._inputs import (
        BillingProfileArgs,
        BootDiagnosticsArgs,
        CapacityReservationProfileArgs,
        DataDiskArgs,
        DiagnosticsProfileArgs,
        HardwareProfileArgs,
        ImageReferenceArgs,
        LinuxConfigurationArgs,
        LinuxPatchSettingsArgs,
        ManagedDiskParametersArgs,
        NetworkInterfaceReferenceArgs,
        NetworkProfileArgs,
        OSDiskArgs,
        OSProfileArgs,
        SshConfigurationArgs,
        SshPublicKeyArgs,
        StorageProfileArgs,
        SubResourceArgs,
    )
    from pulumi_azure_native.compute.virtual_machine import VirtualMachine
    from pulumi_azure_native.network._inputs import (
        NetworkInterfaceIPConfigurationArgs,
        PublicIPAddressArgs,
        SubnetArgs,
    )
    from pulumi_azure_native.network.network_interface import NetworkInterface

_MAKES_ANEW = [
    "osProfile",
    "storageProfile.imageReference",
    "hardwareProfile",
    "priority",
    "evictionPolicy",
    "capacityReservation",
    "availabilitySet",
    "virtualMachineScaleSet",
    "proximityPlacementGroup",
    "zones",
]
"""Properties that Azure never changes on a machine, or not on a running one: the plugin plans an update, and Azure
refuses it."""

_OS_DISK = "storageProfile.osDisk"
"""Not compared. While a machine is deallocated, Azure's answers lack the size and the type of its disks
(Azure/azure-powershell issue 13213, hashicorp/terraform-provider-azurerm issue 539; read 2026-11-22), so after a
refresh every such machine would differ."""
_SHARED_DISK_FACTS = [
    "storageProfile.dataDisks[0].diskSizeGB",
    "storageProfile.dataDisks[0].managedDisk.storageAccountType",
]
"""Never given here, and added to the state by a refresh after the machine has been started again."""

_LUN = 0
DATA_DISK = f"/dev/disk/azure/scsi1/lun{_LUN}"
"""Where the guest finds the shared disk: a link of the Azure agent's, for disks on SCSI."""


@dataclass(frozen=True, kw_only=True)
class MachineArgs:
    """A machine to be."""

    host: HostPlan
    image: str
    """publisher:offer:sku:version, or the id of an image of one's own."""
    boot_disk_gib: int
    subnet: pulumi.Input[str]
    custom_data: pulumi.Input[str]
    """User-data as Azure gets it, in base64."""
    admin_key: pulumi.Input[str]
    container: tuple[Kind, pulumi.Input[str]] | None = None
    """What holds it together with its group, and that thing's id."""
    reservation: str | None = None
    """Id of a capacity reservation group."""
    public_address: pulumi.Input[str] | None = None
    data_disk: pulumi.Input[str] | None = None


def machine(args: MachineArgs, site: Site, opts: pulumi.ResourceOptions) -> VirtualMachine:
    """Declare the machine and its card.

    New user-data, a new image or another size of the boot disk make a new machine: cloud-init acts on user-data at a
    first boot only. The old machine is deleted first, since the new one has its name, card and shared disk.
    """
    host = args.host
    anew = pulumi.ResourceOptions(
        replace_on_changes=_MAKES_ANEW,
        replacement_trigger=args.boot_disk_gib,
        ignore_changes=[_OS_DISK, *(_SHARED_DISK_FACTS if args.data_disk is not None else ())],
        delete_before_replace=True,
    )
    card = _card(args, site, opts)
    kind, holder = args.container or (None, "")
    within = SubResourceArgs(id=holder)
    return VirtualMachine(
        host.name,
        vm_name=host.name,
        resource_group_name=site.group,
        location=site.region,
        # Members of an availability set stand where the set does.
        zones=None if kind is Kind.AVAILABILITY_SET else site.zones,
        hardware_profile=HardwareProfileArgs(vm_size=host.machine.name),
        priority="Spot" if host.spot else None,
        # Deallocate keeps disk, name and address: a later start brings the same node back.
        eviction_policy="Deallocate" if host.spot else None,
        billing_profile=BillingProfileArgs(max_price=-1) if host.spot else None,
        capacity_reservation=CapacityReservationProfileArgs(
            capacity_reservation_group=SubResourceArgs(id=args.reservation)
        )
        if args.reservation
        else None,
        availability_set=within if kind is Kind.AVAILABILITY_SET else None,
        virtual_machine_scale_set=within if kind is Kind.SCALE_SET else None,
        proximity_placement_group=within if kind is Kind.PROXIMITY else None,
        os_profile=_system(args),
        network_profile=NetworkProfileArgs(
            network_interfaces=[NetworkInterfaceReferenceArgs(id=card.id, primary=True, delete_option="Detach")]
        ),
        storage_profile=_disks(args),
        # The console's text is what is left of a machine that never answers.
        diagnostics_profile=DiagnosticsProfileArgs(boot_diagnostics=BootDiagnosticsArgs(enabled=True)),
        tags=site.tags,
        opts=pulumi.ResourceOptions.merge(opts, anew),
    )


def _card(args: MachineArgs, site: Site, opts: pulumi.ResourceOptions) -> NetworkInterface:
    name = f"{args.host.name}-nic"
    public = PublicIPAddressArgs(id=args.public_address) if args.public_address is not None else None
    return NetworkInterface(
        name,
        network_interface_name=name,
        resource_group_name=site.group,
        location=site.region,
        enable_accelerated_networking=size_of(args.host.machine.name).accelerated,
        ip_configurations=[
            NetworkInterfaceIPConfigurationArgs(
                name="private",
                subnet=SubnetArgs(id=args.subnet),
                private_ip_allocation_method="Static",
                private_ip_address=str(args.host.private_ip),
                public_ip_address=public,
            )
        ],
        tags=site.tags,
        opts=opts,
    )


def _system(args: MachineArgs) -> OSProfileArgs:
    # Azure accepts no other path; cloud-init puts the key where user-data says.
    key = SshPublicKeyArgs(key_data=args.admin_key, path=f"/home/{ADMIN_USER}/.ssh/authorized_keys")
    return OSProfileArgs(
        computer_name=args.host.name,
        # Azure makes no machine without a user; cloud-init makes all of them from user-data, this one included.
        admin_username=ADMIN_USER,
        custom_data=args.custom_data,
        linux_configuration=LinuxConfigurationArgs(
            disable_password_authentication=True,
            ssh=SshConfigurationArgs(public_keys=[key]),
            # Nothing may change a kernel under a loaded driver.
            patch_settings=LinuxPatchSettingsArgs(patch_mode="ImageDefault", assessment_mode="ImageDefault"),
            provision_vm_agent=True,
        ),
    )


def _disks(args: MachineArgs) -> StorageProfileArgs:
    shared = DataDiskArgs(
        lun=_LUN,
        create_option="Attach",
        delete_option="Detach",
        caching=CachingTypes.NONE,
        managed_disk=ManagedDiskParametersArgs(id=args.data_disk),
    )
    return StorageProfileArgs(
        image_reference=_image(args.image),
        os_disk=OSDiskArgs(
            # Without a name: the disk of a replaced machine may outlive it for a while
            # (hashicorp/terraform-provider-azurerm issue 23038, read 2026-11-22).
            create_option="FromImage",
            delete_option="Delete",
            caching=CachingTypes.READ_ONLY,
            disk_size_gb=args.boot_disk_gib,
            managed_disk=ManagedDiskParametersArgs(storage_account_type="Premium_LRS"),
        ),
        data_disks=[shared] if args.data_disk is not None else None,
    )


def _image(reference: str) -> ImageReferenceArgs:
    if reference.startswith("/"):
        return ImageReferenceArgs(id=reference)
    publisher, offer, sku, version = reference.split(":")
    return ImageReferenceArgs(publisher=publisher, offer=offer, sku=sku, version=version)
