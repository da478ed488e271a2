"""The checks for Google Cloud stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from components.plan.check import Broken, Level, Planned, check
from components.platforms.gcp.layout import subnets_needed
from components.platforms.gcp.spec import REGIONAL_TIERS, Family, GcpSpec, family_of, region_of
from components.platforms.shared_rules import in_group, in_platform, in_storage
from components.spec.cluster import GroupSpec

_RESERVATION = re.compile(r"[a-z][-a-z0-9]*|projects/[^/]+/reservations/[^/]+(/reservationBlocks/[^/]+)?")


def _spec(planned: Planned) -> GcpSpec:
    return planned.plan.platform_spec(GcpSpec)


def _groups(planned: Planned) -> list[tuple[str, GroupSpec, Family]]:
    return [(name, group, family_of(group.machine)) for name, group in planned.plan.groups.items()]


def _machines(planned: Planned) -> list[tuple[str, str, Family]]:
    """For the head and each node group, return its path, its name in messages and its machine family."""
    head = ("cluster.head.machine", "the head", family_of(planned.plan.head.machine.name))
    return [head, *((f"cluster.nodes.{name}.machine", f"group {name}", family) for name, _, family in _groups(planned))]


def _families(planned: Planned) -> dict[str, Family]:
    return {family.name: family for _, _, family in _machines(planned)}


@check("gcp-boot-disk", Level.ERROR, "remove it, so that each family uses its default")
def boot_disk_fits(planned: Planned) -> Iterator[Broken]:
    """Every machine family in the stack supports the stack's boot disk type."""
    wanted = _spec(planned).boot_disk_type
    for name, family in _families(planned).items():
        if wanted is not None and wanted not in family.boot_disks:
            rule = f"{name} machines boot only from {', '.join(family.boot_disks)}, not from {wanted}"
            yield in_platform("boot_disk_type", rule)


@check(
    "gcp-image-fabric",
    Level.ERROR,
    "build an image with this kernel and set it as cluster.platform.custom_image, or use a3-megagpu-8g, which supports "
    "the pinned image",
)
def image_has_fabric(planned: Planned) -> Iterator[Broken]:
    """A stack uses a custom image if the fabric of its machines needs a different kernel."""
    for path, _, family in _machines(planned):
        if not family.stock_image and _spec(planned).custom_image is None:
            rule = (
                f"GPUDirect-TCPX on {family.name} needs a kernel that is only in Google's private archive, and the "
                "pinned image does not include it"
            )
            yield Broken(path=path, rule=rule)


@check("gcp-zone", Level.ERROR, "use one of {zones}")
def zone_offers(planned: Planned) -> Iterator[Broken]:
    """The zone offers every machine type of the stack."""
    spec = _spec(planned)
    for _, who, family in _machines(planned):
        if family.zones and spec.zone not in family.zones:
            near = [known for known in family.zones if region_of(known) == spec.region]
            rule = f"{spec.zone} does not offer {family.name} machines ({who}; list read {family.dated})"
            yield in_platform("zone", rule, zones=", ".join(near or family.zones))


@check(
    "gcp-zone-unlisted", Level.WARNING, "check `gcloud compute machine-types list --zones={zone} --filter=name={name}`"
)
def zones_recorded(planned: Planned) -> Iterator[Broken]:
    """The catalog lists the zones of all families with GPUs."""
    for name, group, family in _groups(planned):
        if planned.plan.group(name)[0].machine.gpus and not family.zones:
            rule = f"no source in the catalog lists the zones with {family.name} machines"
            yield in_platform("zone", rule, zone=_spec(planned).zone, name=group.machine)


@check(
    "gcp-placement",
    Level.ERROR,
    "use compact to place them close together, or none",
    "use none, or a different machine",
)
def placement_supported(planned: Planned) -> Iterator[Broken]:
    """GCP supports each group's placement: none, or compact for some families."""
    for name, group, family in _groups(planned):
        if group.placement == "same_fabric":
            rule = "GCP does not support same_fabric: all machines in a zone share the zone's network"
            yield in_group(name, "placement", rule)
        if group.placement == "compact" and not family.compact:
            yield in_group(name, "placement", f"{family.name} machines cannot be placed compactly", fix=1)


@check(
    "gcp-reservation-name",
    Level.ERROR,
    "write its name, or projects/<project>/reservations/<name> if another project shares it",
)
def reservation_has_name(planned: Planned) -> Iterator[Broken]:
    """A reservation is specified by its name, or by its path if it belongs to a different project."""
    for name, group, _ in _groups(planned):
        reservation = group.capacity.reservation
        if reservation is not None and not _RESERVATION.fullmatch(reservation):
            yield in_group(name, "capacity.reservation", f"{reservation} is neither a reservation's name nor its path")


@check("gcp-dense-reservation", Level.ERROR, "use none")
def dense_reservation_without_placement(planned: Planned) -> Iterator[Broken]:
    """Node groups in dense reservations do not set a placement."""
    for name, group, family in _groups(planned):
        if group.capacity.kind == "reservation" and group.placement == "compact" and family.dense_reservations:
            rule = (
                f"a reservation of {family.name} machines is dense: the machines are already close together, and "
                "Google rejects other placement policies"
            )
            yield in_group(name, "placement", rule)


@check("gcp-reservation-policy", Level.WARNING, "use none, and create the reservation with a placement policy")
def reservation_without_placement(planned: Planned) -> Iterator[Broken]:
    """Node groups in non-dense reservations do not set a placement, because a reservation has its own policy."""
    for name, group, family in _groups(planned):
        if group.capacity.kind == "reservation" and group.placement == "compact" and not family.dense_reservations:
            rule = (
                "a reservation accepts only the placement policy from its creation, but the stack creates a new policy"
            )
            yield in_group(name, "placement", rule)


@check("gcp-compact-scarce", Level.INFO, "use none, for which capacity is available more often, or a reservation")
def compact_scarcity_reported(planned: Planned) -> Iterator[Broken]:
    """A note warns that Google may have no capacity for a compact group."""
    for name, group, _ in _groups(planned):
        if group.placement == "compact" and group.capacity.kind != "reservation":
            rule = "a compact group needs free machines close together, so Google may have no capacity"
            yield in_group(name, "placement", rule)


@check("gcp-on-demand", Level.WARNING, "use {kind: reservation, reservation: <name>} or {kind: spot}")
def on_demand_documented(planned: Planned) -> Iterator[Broken]:
    """In Google's deployment examples, the machine family of each group with on-demand capacity is used on demand."""
    for name, group, family in _groups(planned):
        if group.capacity.kind == "on_demand" and not family.on_demand_seen:
            rule = (
                f"Google's deployment examples use {family.name} machines with reservations or Spot, not on demand: "
                "`up` may fail because no machine is free"
            )
            yield in_group(name, "capacity", rule)


@check(
    "gcp-unverified",
    Level.INFO,
    "compare it with Google's documentation, and set boot_disk_type",
    "set it to false if Google rejects it: each machine with Tier_1 networking costs more",
)
def unverified_reported(planned: Planned) -> Iterator[Broken]:
    """A note lists unverified facts about the machine families in the stack."""
    spec = _spec(planned)
    for name, family in _families(planned).items():
        if "boot_disks" in family.unverified and spec.boot_disk_type is None:
            rule = f"unverified: no public source states that {name} machines boot from {family.boot_disks[0]}"
            yield in_platform("boot_disk_type", rule)
        starts_at = family.tier_1_from_vcpus
        if not spec.tier_1 or starts_at is None or "tier_1_from_vcpus" not in family.unverified:
            continue
        used = [host.machine.vcpus for host in planned.plan.hosts if family_of(host.machine.name) is family]
        if max(used) >= starts_at:
            kind = f"{name} machines with {starts_at} vCPUs"
            rule = f"unverified: no public source states that {kind} have Tier_1 networking"
            yield in_platform("tier_1", rule, fix=1)


@check(
    "gcp-fabric-network",
    Level.ERROR,
    "use a wider one, for example 10.192.0.0/10, or a narrower cluster.network.cidr",
    "choose a different private range for one of them",
)
def fabric_network_fits(planned: Planned) -> Iterator[Broken]:
    """The networks for GPU interfaces fit into fabric_cidr, and fabric_cidr does not overlap the primary network."""
    needed = subnets_needed(planned.plan)
    if not needed:
        return
    fabric, primary = _spec(planned).fabric_cidr, planned.plan.network
    room = 2 ** (primary.prefixlen - fabric.prefixlen) if fabric.prefixlen <= primary.prefixlen else 0
    if room < needed:
        rule = f"{fabric} has room for {room} networks of /{primary.prefixlen}, and GPU interfaces need {needed}"
        yield in_platform("fabric_cidr", rule)
    if fabric.overlaps(primary):
        rule = f"{fabric} overlaps cluster.network.cidr ({primary}), but a machine needs separate networks"
        yield in_platform("fabric_cidr", rule, fix=1)


@check("gcp-address-kept", Level.ERROR, "use {index} or fewer, or a wider cluster.network.cidr")
def address_free(planned: Planned) -> Iterator[Broken]:
    """No host has the second-to-last address in the subnet, because Google reserves it."""
    reserved = planned.plan.network[-2]
    for host in planned.plan.workers:
        if host.private_ip == reserved:
            rule = f"{host.name} would get {reserved}, which Google reserves in {planned.plan.network}"
            yield in_group(str(host.group), "count", rule, index=host.index)


@check(
    "gcp-tunnel",
    Level.INFO,
    "install the Google Cloud CLI (gcloud) where they run, log in with `gcloud auth login`, and have the role "
    "roles/iap.tunnelResourceAccessor",
)
def tunnel_reported(planned: Planned) -> Iterator[Broken]:
    """A note names the command-line tool that opens the tunnel to the head."""
    if planned.plan.access.via == "bastion":
        rule = (
            "`pulumi up` and `yard` connect to the head through a tunnel that `gcloud compute start-iap-tunnel` opens"
        )
        yield Broken(path="cluster.access.via", rule=rule)


_SIZES = {
    "BASIC_HDD": (1024, 65433, 1),
    "BASIC_SSD": (2560, 65433, 1),
    "ZONAL": (1024, 102400, 256),
    "REGIONAL": (1024, 102400, 256),
    "ENTERPRISE": (1024, 10240, 256),
}
"""Mapping from Filestore tier to its minimum, maximum and step in GiB (documentation of file_shares in SDK 10.2.0)."""
_HIGH_BAND, _HIGH_STEP = 10240, 2560
"""Above 10 TiB, the ZONAL and REGIONAL tiers have larger steps."""


@check("gcp-storage-kind", Level.ERROR, "use filestore, head_nfs or external")
def kind_known(planned: Planned) -> Iterator[Broken]:
    """GCP supports the kind of shared storage."""
    kind = planned.plan.storage.kind
    if kind in {"azure_files", "azure_netapp"}:
        yield in_storage("kind", f"GCP does not offer {kind}")


@check("gcp-filestore-size", Level.ERROR, "use {fitting}")
def size_fits(planned: Planned) -> Iterator[Broken]:
    """The Filestore tier supports the size."""
    shared = planned.plan.storage
    if shared.kind != "filestore":
        return
    tier = _spec(planned).filestore.tier
    (smallest, largest, step), wanted = _SIZES[tier], shared.size_gib
    if tier in {"ZONAL", "REGIONAL"} and wanted > _HIGH_BAND:
        step = _HIGH_STEP
    if smallest <= wanted <= largest and wanted % step == 0:
        return
    steps = f", in steps of {step}" if step > 1 else ""
    fitting = min(largest, max(smallest, -(-wanted // step) * step))
    rule = f"Filestore {tier} has {smallest} to {largest} GiB{steps}, not {wanted}"
    yield in_storage("size_gib", rule, fitting=fitting)


@check("gcp-filestore-region", Level.ERROR, "remove it: Filestore is then in {zone}")
def filestore_in_region(planned: Planned) -> Iterator[Broken]:
    """Filestore is in the nodes' region."""
    spec, zone = _spec(planned), _filestore_zone(planned)
    if region_of(zone) != spec.region:
        rule = (
            f"{zone} is in a different region than the nodes ({spec.zone}). The mount works, but file access is slow: "
            "one team trained slowly for days with nodes in us-central1 and Filestore in asia-southeast1"
        )
        yield in_platform("filestore.zone", rule, zone=spec.zone)


@check("gcp-filestore-zone", Level.WARNING, "remove it, unless the nodes' zone has no Filestore")
def filestore_in_zone(planned: Planned) -> Iterator[Broken]:
    """Filestore is in the nodes' zone, because traffic between zones costs extra."""
    spec, zone = _spec(planned), _filestore_zone(planned)
    if zone != spec.zone and region_of(zone) == spec.region and spec.filestore.tier not in REGIONAL_TIERS:
        rule = f"{zone} is not the nodes' zone {spec.zone}, so all file traffic crosses zones"
        yield in_platform("filestore.zone", rule)


def _filestore_zone(planned: Planned) -> str:
    """Return the Filestore's zone, or the nodes' zone if the stack has no Filestore."""
    spec = _spec(planned)
    return spec.filestore.zone or spec.zone if planned.plan.storage.kind == "filestore" else spec.zone
