"""A Compute Engine instance in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_gcp import compute

from components.plan.plan import ClusterPlan
from components.platforms.gcp.machine_facts import Family, family_of
from components.platforms.gcp.spec import GcpSpec

_BIRTH = ('metadata["user-data"]', "bootDisk.initializeParams.image")
"""Properties that have no effect on existing machines, so changes to them are ignored. A machine that is replaced, for
example with `pulumi up --replace`, gets the new values (see the same name in components/platforms/azure)."""
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


DATA_DISK = "trainyard-shared"
"""Device name of the shared disk. In the guest, the disk is linked as /dev/disk/by-id/google-<device name>."""


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """The facts that the machines of a group share."""

    name: str
    """Google's name of the machine type, for example a3-megagpu-8g."""
    zone: str
    image: str
    """projects/<project>/global/images/<name>"""
    boot_disk_gib: int
    service_account: pulumi.Input[str]
    """Email of the machines' service account."""
    boot_disk_type: str | None = None
    """Default: the first type that the machine family supports."""
    gpus: int = 0
    tier_1: bool = False
    """Whether the machines pay for a higher egress bandwidth."""


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """One machine of a group."""

    name: str
    cards: Sequence[tuple[str, pulumi.Input[str], str]]
    """The type (GVNIC or MRDMA), the subnet's self link and the fixed address of each network interface."""
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str] = ""
    """If this text changes, the machine is replaced."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Google provides the machines of a group."""

    kind: Literal["on_demand", "spot", "reservation"] = "on_demand"
    reservation: str | None = None
    """Name of a reservation."""
    placement_policy: pulumi.Input[str] | None = None
    """Self link of a compact placement policy."""


ON_DEMAND = Capacity()


def machine(  # noqa: PLR0913  (the parts of a machine that differ between the head, the workers and the builder)
    node: NodeArgs,
    kind: MachineType,
    opts: pulumi.ResourceOptions,
    *,
    capacity: Capacity = ON_DEMAND,
    tags: Sequence[str] | None = None,
    public_ip: pulumi.Input[str] | None = None,
    data_disk: pulumi.Input[str] | None = None,
) -> compute.Instance:
    """Declare the machine and return it.

    A change to the identity replaces the machine, because cloud-init applies user-data only at the first boot. A
    change to the user-data or the image alone does not replace it. Other metadata keys are updated in place:
    `gcloud compute ssh` adds ssh-keys, and a refresh reads all keys into the state.
    The old machine is deleted first, because the new machine has the same name and addresses.
    """
    merged = pulumi.ResourceOptions.merge(
        opts,
        pulumi.ResourceOptions(
            replacement_trigger=node.identity,
            delete_before_replace=True,
            # Machines with bundled local SSDs report these SSDs as scratchDisks. This difference must not replace the
            # machine.
            ignore_changes=["scratchDisks", *_BIRTH],
        ),
    )
    return compute.Instance(
        node.name,
        name=node.name,
        machine_type=kind.name,
        zone=kind.zone,
        boot_disk=_boot_disk(kind),
        attached_disks=[compute.InstanceAttachedDiskArgs(source=data_disk, device_name=DATA_DISK)]
        if data_disk is not None
        else None,
        network_interfaces=_interfaces(node, public_ip),
        network_performance_config=compute.InstanceNetworkPerformanceConfigArgs(total_egress_bandwidth_tier="TIER_1")
        if kind.tier_1
        else None,
        scheduling=scheduling(
            family_of(kind.name), kind.gpus, capacity.kind, compact=capacity.placement_policy is not None
        ),
        resource_policies=capacity.placement_policy,
        reservation_affinity=_reservation(capacity.reservation),
        # The account has no roles. The scope does not limit its permissions, which depend only on IAM roles.
        service_account=compute.InstanceServiceAccountArgs(email=kind.service_account, scopes=["cloud-platform"]),
        # Secure Boot rejects the unsigned kernel modules that DKMS builds.
        shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=False, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        metadata={
            "user-data": node.user_data,
            # The bootstrap publishes the host key as a guest attribute.
            "enable-guest-attributes": "TRUE",
            # User-data defines the users, whose ids are the same on all nodes. OS Login would add other users.
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
        },
        tags=tags,
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


def _boot_disk(kind: MachineType) -> compute.InstanceBootDiskArgs:
    params = compute.InstanceBootDiskInitializeParamsArgs(
        image=kind.image,
        type=kind.boot_disk_type or family_of(kind.name).boot_disks[0],
        size=kind.boot_disk_gib,
    )
    return compute.InstanceBootDiskArgs(auto_delete=True, initialize_params=params)


def supports_tier_1(machine: str, vcpus: int) -> bool:
    """Return whether a machine type supports a higher egress bandwidth."""
    starts_at = family_of(machine).tier_1_from_vcpus
    return starts_at is not None and vcpus >= starts_at


def _interfaces(node: NodeArgs, public_ip: pulumi.Input[str] | None) -> list[compute.InstanceNetworkInterfaceArgs]:
    # Google derives the network from the subnet.
    cards = [
        compute.InstanceNetworkInterfaceArgs(subnetwork=subnet, network_ip=address, nic_type=kind)
        for kind, subnet, address in node.cards
    ]
    if public_ip is not None:
        cards[0].access_configs = [compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=public_ip)]
    return cards


def _reservation(name: str | None) -> compute.InstanceReservationAffinityArgs | None:
    if name is None:
        return None
    named = compute.InstanceReservationAffinitySpecificReservationArgs(key=_RESERVATION_KEY, values=[name])
    return compute.InstanceReservationAffinityArgs(type="SPECIFIC_RESERVATION", specific_reservation=named)
