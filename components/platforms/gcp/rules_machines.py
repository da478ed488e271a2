"""What Compute Engine refuses about machines, their disks and how they are bought."""

from __future__ import annotations

import re
from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.gcp.families import Family, family_of
from components.platforms.gcp.spec import Spec

_RESERVATION = re.compile(r"[a-z][-a-z0-9]*|projects/[^/]+/reservations/[^/]+(/reservationBlocks/[^/]+)?")


def boot_disk_fits(planned: Planned) -> Iterator[Problem]:
    """A named type of boot disk is one that every machine family of the stack boots from."""
    spec = gcp_spec(planned)
    for name, family in _families(planned).items():
        if spec.boot_disk_type is not None and spec.boot_disk_type not in family.boot_disks:
            known = ", ".join(family.boot_disks)
            yield Problem(
                path="cluster.platform.boot_disk_type",
                rule=f"{name} machines do not boot from {spec.boot_disk_type}, only from {known}",
                fix="leave it out, and each family gets its own",
            )


def image_has_fabric(planned: Planned) -> Iterator[Problem]:
    """A family whose fabric needs a kernel of its own runs an image that has it."""
    if gcp_spec(planned).custom_image is not None:
        return
    for path, _, family in _asked_for(planned):
        if not family.stock_image:
            yield Problem(
                path=path,
                rule=f"GPUDirect-TCPX on {family.name} needs a kernel that only Google's private archive has, "
                "and the pinned image lacks it",
                fix="build an image with it and name it in cluster.platform.custom_image, "
                "or use a3-megagpu-8g, which runs the pinned one",
            )


def zone_offers(planned: Planned) -> Iterator[Problem]:
    """The zone offers every machine type of the stack; only such zones have RoCE networks."""
    zone = gcp_spec(planned).zone
    for _, who, family in _asked_for(planned):
        if family.zones and zone not in family.zones:
            near = [known for known in family.zones if known.rpartition("-")[0] == gcp_spec(planned).region]
            yield Problem(
                path="cluster.platform.zone",
                rule=f"{zone} does not offer {family.name} machines ({who}; list read {family.dated})",
                fix=f"use one of {', '.join(near or family.zones)}",
            )


def zone_unlisted(planned: Planned) -> Iterator[Problem]:
    """The zones of a family with GPUs are recorded."""
    zone = gcp_spec(planned).zone
    for name, family in _groups(planned):
        machine = planned.plan.group(name)[0].machine
        if machine.gpus and not family.zones:
            yield Problem(
                path="cluster.platform.zone",
                rule=f"no source in the catalog lists the zones of {family.name} machines",
                fix=f"check `gcloud compute machine-types list --zones={zone} --filter=name={machine.name}`",
            )


def placement_known(planned: Planned) -> Iterator[Problem]:
    """GCP has compact placement, for some families, and nothing like Azure's containers of one fabric."""
    for group, family in _groups(planned):
        path = f"cluster.nodes.{group}.placement"
        placement = planned.spec.nodes[group].placement
        if placement == "same_fabric":
            yield Problem(
                path=path,
                rule="same_fabric is not a placement of GCP: all machines of a zone share its network",
                fix="use compact to have them close together, or none",
            )
        if placement == "compact" and not family.compact:
            yield Problem(
                path=path, rule=f"{family.name} machines cannot be placed compactly", fix="use none, or another machine"
            )


def reservation_has_name(planned: Planned) -> Iterator[Problem]:
    """A reservation is one of the project's own by its name, or another project's by its path."""
    for name, group in planned.spec.nodes.items():
        reservation = group.capacity.reservation
        if reservation is not None and not _RESERVATION.fullmatch(reservation):
            yield Problem(
                path=f"cluster.nodes.{name}.capacity.reservation",
                rule=f"{reservation} is neither a reservation's name nor its path",
                fix="write its name, or projects/<project>/reservations/<name> for one that is shared with yours",
            )


def dense_reservation_places(planned: Planned) -> Iterator[Problem]:
    """Machines of a dense reservation are together already, and refuse a policy of their own."""
    for name, family in _groups(planned):
        group = planned.spec.nodes[name]
        if group.capacity.kind == "reservation" and group.placement == "compact" and family.dense_reservations:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule=f"a reservation of {family.name} machines is dense: they stand together already, and a placement "
                "policy of our own is refused",
                fix="use none",
            )


def reservation_places(planned: Planned) -> Iterator[Problem]:
    """A reservation made with a policy takes machines with that same policy only."""
    for name, family in _groups(planned):
        group = planned.spec.nodes[name]
        if group.capacity.kind == "reservation" and group.placement == "compact" and not family.dense_reservations:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule="a reservation takes machines with a placement policy only if it was made with the same one, "
                "and this one is new",
                fix="use none, and place the reservation itself when you make it",
            )


def compact_is_scarce(planned: Planned) -> Iterator[Problem]:
    """A compact group is harder to get: the whole of it must be free in one place."""
    for name, _ in _groups(planned):
        group = planned.spec.nodes[name]
        if group.placement == "compact" and group.capacity.kind != "reservation":
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule="compact machines come only if they are free near one another; a team that trained on A100s took "
                "the policy off again, because it got none",
                fix="use none if machines matter more than microseconds, or a reservation",
            )


def on_demand_seen(planned: Planned) -> Iterator[Problem]:
    """A family is bought in a way in which Google's own deployment examples buy it."""
    for name, family in _groups(planned):
        if planned.spec.nodes[name].capacity.kind == "on_demand" and not family.on_demand_seen:
            yield Problem(
                path=f"cluster.nodes.{name}.capacity",
                rule=f"Google's deployment examples get {family.name} machines by reservation or Spot, not "
                "on demand: `up` may fail because none is free",
                fix="use {kind: reservation, reservation: <name>} or {kind: spot}",
            )


def unconfirmed_told(planned: Planned) -> Iterator[Problem]:
    """Facts of families that no published page or code confirmed are not used in silence."""
    spec = gcp_spec(planned)
    for name, family in _families(planned).items():
        if "boot_disks" in family.unverified and spec.boot_disk_type is None:
            yield Problem(
                path="cluster.platform.boot_disk_type",
                rule=f"nobody's page or code confirmed that {name} machines boot from {family.boot_disks[0]}",
                fix="compare it with Google's documentation, and name the type yourself",
            )
        starts_at = family.tier_1_from_vcpus
        if not spec.tier_1 or starts_at is None or "tier_1_from_vcpus" not in family.unverified:
            continue
        largest = max(host.machine.vcpus for host in planned.plan.hosts if family_of(host.machine.name) is family)
        if largest >= starts_at:
            yield Problem(
                path="cluster.platform.tier_1",
                rule=f"nobody's page or code confirmed Tier_1 networking of {name} machines with {starts_at} vCPUs",
                fix="set it to false where Google refuses it: it is paid for by the machine",
            )


def gcp_spec(planned: Planned) -> Spec:
    """Return the stack's `platform:` section. Raises TypeError for another platform's."""
    if not isinstance(planned.spec.platform, Spec):
        raise TypeError(f"the rules of GCP cannot judge a {type(planned.spec.platform).__name__}")
    return planned.spec.platform


def _groups(planned: Planned) -> list[tuple[str, Family]]:
    return [(name, family_of(group.machine)) for name, group in planned.spec.nodes.items()]


def _asked_for(planned: Planned) -> list[tuple[str, str, Family]]:
    """Return the family of the head and of each node group, with the place that asks for it and whose it is."""
    head = ("cluster.head.machine", "the head", family_of(planned.plan.head.machine.name))
    return [head, *((f"cluster.nodes.{name}.machine", f"group {name}", family) for name, family in _groups(planned))]


def _families(planned: Planned) -> dict[str, Family]:
    return {family.name: family for family in (family_of(host.machine.name) for host in planned.plan.hosts)}
