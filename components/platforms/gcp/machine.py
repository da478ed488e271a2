"""A Compute Engine instance in the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_gcp import compute

from components.node.user_data import Birth
from components.plan.plan import ClusterPlan, HostPlan, Role
from components.platforms.gcp.layout import Card
from components.platforms.gcp.machine_facts import Family, family_of
from components.platforms.gcp.network import HEAD_TAG
from components.platforms.gcp.spec import GcpSpec

_USER_DATA = 'metadata["user-data"]'
_BIRTH = (_USER_DATA, "bootDisk.initializeParams.image")
"""Properties that have no effect on existing machines. Changes to these properties are ignored, except for the machines
in TRAINYARD_ROLL."""
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True, kw_only=True)
class MachineArgs:
    """Arguments for a machine."""

    host: HostPlan
    plan: ClusterPlan
    cards: Sequence[Card]
    subnets: Mapping[str, pulumi.Input[str]]
    """Self link of each subnet by name."""
    birth: pulumi.Output[Birth]
    is_rolled: bool
    """Whether changed user-data or a changed image replaces the machine."""
    service_account: pulumi.Input[str]
    """Email of the machine's service account."""
    public_ip: pulumi.Input[str] | None = None
    placement_policy: pulumi.Input[str] | None = None
    """Self link of the group's compact placement policy."""
    data_disk: pulumi.Input[str] | None = None
    """Self link of the disk with the shared files, set only for a head that serves these files."""


DATA_DISK = "trainyard-shared"
"""Device name of the shared disk. In the guest, the disk is linked as /dev/disk/by-id/google-<device name>."""


def machine(args: MachineArgs, opts: pulumi.ResourceOptions) -> compute.Instance:
    """Declare the machine.

    A change to the identity replaces the machine, because cloud-init applies user-data only at the first boot. If only
    the user-data or the image changes, only the machines in TRAINYARD_ROLL are replaced. Other metadata keys are
    updated in place: `gcloud compute ssh` adds ssh-keys, and a refresh reads all keys into the state.
    The old machine is deleted first, because the new machine has the same name and addresses.
    """
    host, spec = args.host, args.plan.platform_spec(GcpSpec)
    group = args.plan.groups[host.group] if host.group is not None else None
    capacity = group.capacity.kind if group is not None else "on_demand"
    merged = pulumi.ResourceOptions.merge(
        opts,
        pulumi.ResourceOptions(
            replace_on_changes=[_USER_DATA],
            replacement_trigger=args.birth.apply(lambda birth: birth.identity),
            delete_before_replace=True,
            # Machines with bundled local SSDs report these SSDs as scratchDisks. This difference must not replace the
            # machine.
            ignore_changes=["scratchDisks", *(() if args.is_rolled else _BIRTH)],
        ),
    )
    return compute.Instance(
        host.name,
        name=host.name,
        machine_type=host.machine.name,
        zone=spec.zone,
        boot_disk=_boot_disk(args),
        attached_disks=[compute.InstanceAttachedDiskArgs(source=args.data_disk, device_name=DATA_DISK)]
        if args.data_disk is not None
        else None,
        network_interfaces=_interfaces(args),
        network_performance_config=compute.InstanceNetworkPerformanceConfigArgs(total_egress_bandwidth_tier="TIER_1")
        if spec.tier_1 and _supports_tier_1(host)
        else None,
        scheduling=scheduling(
            family_of(host.machine.name), host.machine.gpus, capacity, compact=host.placement == "compact"
        ),
        resource_policies=args.placement_policy,
        reservation_affinity=_reservation(group.capacity.reservation if group is not None else None),
        # The account has no roles. The scope does not limit its permissions, which depend only on IAM roles.
        service_account=compute.InstanceServiceAccountArgs(email=args.service_account, scopes=["cloud-platform"]),
        # Secure Boot rejects the unsigned kernel modules that DKMS builds.
        shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=False, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        metadata={
            "user-data": args.birth.apply(lambda birth: birth.user_data),
            # The bootstrap publishes the host key as a guest attribute.
            "enable-guest-attributes": "TRUE",
            # User-data defines the users, whose ids are the same on all nodes. OS Login would add other users.
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
        },
        tags=[HEAD_TAG] if host.role is Role.HEAD else None,
        # A refresh compares this value with the machine's status, so `pulumi up --refresh` starts a stopped machine.
        desired_status="RUNNING",
        allow_stopping_for_update=True,
        opts=merged,
    )


def scheduling(family: Family, gpus: int, kind: str, *, compact: bool = False) -> compute.InstanceSchedulingArgs:
    """Return the scheduling options of a machine. `kind` is on_demand, spot or reservation."""
    if kind == "spot":
        # STOP keeps the disk, the name and the addresses, so `pulumi up --refresh` later starts the same node.
        return compute.InstanceSchedulingArgs(
            provisioning_model="SPOT",
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
            preemptible=True,
            instance_termination_action="STOP",
        )
    if kind == "reservation" and family.dense_reservations:
        return compute.InstanceSchedulingArgs(
            provisioning_model="RESERVATION_BOUND",
            on_host_maintenance="TERMINATE",
            automatic_restart=True,
            preemptible=False,
            instance_termination_action="DELETE",
        )
    return compute.InstanceSchedulingArgs(
        provisioning_model="STANDARD",
        # GPU machines cannot migrate to another host, and the machines in a compact group must stay together.
        on_host_maintenance="TERMINATE" if gpus or compact else "MIGRATE",
        # A restart could place the machine outside the compact group. Google's Cluster Toolkit also disables automatic
        # restarts.
        automatic_restart=not compact,
        preemptible=False,
    )


def image_of(plan: ClusterPlan) -> str:
    """Return the image of new machines: projects/<project>/global/images/<name>."""
    spec = plan.platform_spec(GcpSpec)
    return spec.baked_image or spec.base_image(str(plan.image.reference))


def image_below(made: compute.Instance) -> pulumi.Output[str]:
    """Return the image of a machine in the same format as `image_of`, or "" if the state does not contain it.

    After a refresh, the state contains the URL of the image, which ends with this format
    (hashicorp/terraform-provider-google, flattenBootDisk: the disk's sourceImage; read 2026-11-22).
    """
    return made.boot_disk.apply(lambda disk: _short(disk.initialize_params.image) if disk.initialize_params else "")


def _short(image: str | None) -> str:
    return image[image.find("projects/") :] if image else ""


def _boot_disk(args: MachineArgs) -> compute.InstanceBootDiskArgs:
    spec = args.plan.platform_spec(GcpSpec)
    params = compute.InstanceBootDiskInitializeParamsArgs(
        image=image_of(args.plan),
        type=spec.boot_disk_type or family_of(args.host.machine.name).boot_disks[0],
        size=spec.boot_disk_gib,
    )
    return compute.InstanceBootDiskArgs(auto_delete=True, initialize_params=params)


def _supports_tier_1(host: HostPlan) -> bool:
    starts_at = family_of(host.machine.name).tier_1_from_vcpus
    return starts_at is not None and host.machine.vcpus >= starts_at


def _interfaces(args: MachineArgs) -> list[compute.InstanceNetworkInterfaceArgs]:
    # Google derives the network from the subnet.
    cards = [
        compute.InstanceNetworkInterfaceArgs(
            subnetwork=args.subnets[card.subnet], network_ip=str(card.address), nic_type=card.kind.value
        )
        for card in args.cards
    ]
    if args.public_ip is not None:
        cards[0].access_configs = [compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=args.public_ip)]
    return cards


def _reservation(name: str | None) -> compute.InstanceReservationAffinityArgs | None:
    if name is None:
        return None
    named = compute.InstanceReservationAffinitySpecificReservationArgs(key=_RESERVATION_KEY, values=[name])
    return compute.InstanceReservationAffinityArgs(type="SPECIFIC_RESERVATION", specific_reservation=named)
