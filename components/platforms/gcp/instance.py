"""One machine of the cluster in Compute Engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from components.platforms.gcp.layout import Card
from components.platforms.gcp.network import HEAD_TAG
from components.platforms.gcp.procurement import Procurement
from components.platforms.gcp.sdk import narrow_import

with narrow_import():
    from pulumi_gcp.compute._inputs import (
        InstanceAttachedDiskArgs,
        InstanceBootDiskArgs,
        InstanceBootDiskInitializeParamsArgs,
        InstanceNetworkInterfaceAccessConfigArgs,
        InstanceNetworkInterfaceArgs,
        InstanceNetworkPerformanceConfigArgs,
        InstanceReservationAffinityArgs,
        InstanceReservationAffinitySpecificReservationArgs,
        InstanceSchedulingArgs,
        InstanceServiceAccountArgs,
        InstanceShieldedInstanceConfigArgs,
    )
    from pulumi_gcp.compute.instance import Instance

_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, kw_only=True)
class DiskArgs:
    """The boot disk: `image` as "projects/<project>/global/images/<name>"."""

    image: str
    type: str
    size_gib: int


@dataclass(frozen=True, kw_only=True)
class MachineArgs:
    """A machine to be. Plain values are known when the program runs."""

    name: str
    machine_type: str
    zone: str
    is_head: bool
    disk: DiskArgs
    cards: Sequence[Card]
    subnets: Mapping[str, pulumi.Input[str]]
    """Self link by subnet name."""
    procurement: Procurement
    tier_1: bool
    user_data: pulumi.Input[str]
    service_account: pulumi.Input[str]
    """Email of the account that the machine acts as."""
    public_ip: pulumi.Input[str] | None = None
    placement_policy: pulumi.Input[str] | None = None
    """Self link of the group's compact policy."""
    data_disk: pulumi.Input[str] | None = None
    """Self link of the disk with the cluster's shared files, for a head that serves them."""


DATA_DISK = "trainyard-shared"
"""The guest finds the shared disk as /dev/disk/by-id/google-<this>."""


def machine(args: MachineArgs, opts: pulumi.ResourceOptions) -> Instance:
    """Declare the machine.

    New user-data makes a new machine, because cloud-init reads it at the first boot only. Other metadata keys change
    in place: `gcloud compute ssh` adds ssh-keys, and the provider reads all keys back at a refresh. The old machine is
    deleted first, because the new one has its name and addresses.
    """
    merged = pulumi.ResourceOptions.merge(
        opts,
        pulumi.ResourceOptions(
            replace_on_changes=['metadata["user-data"]'],
            delete_before_replace=True,
            # Families with bundled local disks report them as scratchDisks, which must not make a new machine.
            ignore_changes=["scratchDisks"],
        ),
    )
    return Instance(
        args.name,
        name=args.name,
        machine_type=args.machine_type,
        zone=args.zone,
        boot_disk=_boot_disk(args.disk),
        attached_disks=[InstanceAttachedDiskArgs(source=args.data_disk, device_name=DATA_DISK)]
        if args.data_disk is not None
        else None,
        network_interfaces=_interfaces(args),
        network_performance_config=InstanceNetworkPerformanceConfigArgs(total_egress_bandwidth_tier="TIER_1")
        if args.tier_1
        else None,
        scheduling=_scheduling(args.procurement),
        resource_policies=args.placement_policy,
        reservation_affinity=_reservation(args.procurement),
        # The scope is wide and the account has no role: rights are given in one place, IAM.
        service_account=InstanceServiceAccountArgs(email=args.service_account, scopes=["cloud-platform"]),
        # Secure boot refuses kernel modules that nobody signed, and DKMS builds such ones.
        shielded_instance_config=InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=False, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        metadata=_metadata(args.user_data),
        tags=[HEAD_TAG] if args.is_head else None,
        # The provider compares it with the machine's status at a refresh: `pulumi up --refresh` starts a stopped one.
        desired_status="RUNNING",
        allow_stopping_for_update=True,
        opts=merged,
    )


def _metadata(user_data: pulumi.Input[str]) -> dict[str, pulumi.Input[str]]:
    return {
        "user-data": user_data,
        # The host key is published there, for those who may read the instance.
        "enable-guest-attributes": "TRUE",
        # Users and their numbers are the cluster's own and equal on every node; OS Login would add Google's.
        "enable-oslogin": "FALSE",
        "block-project-ssh-keys": "TRUE",
    }


def _boot_disk(disk: DiskArgs) -> InstanceBootDiskArgs:
    params = InstanceBootDiskInitializeParamsArgs(image=disk.image, type=disk.type, size=disk.size_gib)
    return InstanceBootDiskArgs(auto_delete=True, initialize_params=params)


def _interfaces(args: MachineArgs) -> list[InstanceNetworkInterfaceArgs]:
    # The API takes the network from the subnet; naming both invites them to disagree.
    cards = [
        InstanceNetworkInterfaceArgs(
            subnetwork=args.subnets[card.subnet], network_ip=str(card.address), nic_type=card.kind.value
        )
        for card in args.cards
    ]
    if args.public_ip is not None:
        cards[0].access_configs = [InstanceNetworkInterfaceAccessConfigArgs(nat_ip=args.public_ip)]
    return cards


def _scheduling(bought: Procurement) -> InstanceSchedulingArgs:
    return InstanceSchedulingArgs(
        provisioning_model=bought.provisioning_model,
        on_host_maintenance=bought.on_host_maintenance,
        automatic_restart=bought.automatic_restart,
        preemptible=bought.preemptible,
        instance_termination_action=bought.termination_action,
    )


def _reservation(bought: Procurement) -> InstanceReservationAffinityArgs | None:
    if bought.reservation is None:
        return None
    named = InstanceReservationAffinitySpecificReservationArgs(key=_RESERVATION_KEY, values=[bought.reservation])
    return InstanceReservationAffinityArgs(type="SPECIFIC_RESERVATION", specific_reservation=named)
