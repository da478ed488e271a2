"""What Azure refuses about machines, what holds them together and how they are bought."""

from __future__ import annotations

import re
from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.azure.containers import Kind, container_of
from components.platforms.azure.sizes import Size, size_of
from components.platforms.azure.spec import Spec
from components.spec import GroupSpec

_RESERVATION_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/capacityReservationGroups/[^/]+",
    re.IGNORECASE,
)


def size_is_sold(planned: Planned) -> Iterator[Problem]:
    """Azure still makes machines of the size."""
    for path, size in asked_for(planned):
        if size.retired is not None:
            yield Problem(
                path=path,
                rule=f"Azure has retired {size.name} on {size.retired}",
                fix="use a size with newer GPUs, for example Standard_NC24ads_A100_v4 or Standard_ND96amsr_A100_v4",
            )


def image_drives_gpus(planned: Planned) -> Iterator[Problem]:
    """The image has a driver for the size's GPUs."""
    if azure_spec(planned).custom_image is not None:
        return
    for path, size in asked_for(planned):
        if not size.stock_image:
            yield Problem(
                path=path,
                rule=f"the pinned image has NVIDIA's open kernel modules, which do not drive the V100s of {size.name}",
                fix="make an image of your own from microsoft-dsvm:ubuntu-hpc:2204-v100 with Ubuntu 24.04's Slurm and "
                "name it in cluster.platform.custom_image, or use a size with newer GPUs",
            )


def one_image_is_named(planned: Planned) -> Iterator[Problem]:
    """The version belongs to the marketplace image, which a custom image takes the place of."""
    spec = azure_spec(planned)
    if spec.custom_image is not None and spec.image_version is not None:
        yield Problem(
            path="cluster.platform.image_version",
            rule="has no effect together with custom_image, whose id names one image already",
            fix="remove image_version or custom_image",
        )


def fabric_is_there(planned: Planned) -> Iterator[Problem]:
    """A group that is to share a fabric has one."""
    for name, group, size in groups(planned):
        if group.placement != "same_fabric" or size.largest_fabric is not None:
            continue
        fix = "use compact or none"
        if size.with_fabric is not None:
            fix = f"use {size.with_fabric}, whose name differs by the letter r for RDMA"
        yield Problem(path=f"cluster.nodes.{name}.placement", rule=f"{size.name} has no InfiniBand", fix=fix)


def fabric_holds_group(planned: Planned) -> Iterator[Problem]:
    """One container holds the whole group: InfiniBand ends at its border."""
    for name, group, size in groups(planned):
        largest = size.largest_fabric
        if group.placement == "same_fabric" and largest is not None and group.count > largest:
            yield Problem(
                path=f"cluster.nodes.{name}.count",
                rule=f"one {container_of(group, azure_spec(planned).zone).kind} holds at most {largest} machines, and "
                f"InfiniBand reaches no further; {group.count} are asked for",
                fix=f"use {largest} or fewer, or two groups, whose jobs then stay apart",
            )


def compact_without_fabric(planned: Planned) -> Iterator[Problem]:
    """Machines with InfiniBand are together by their fabric; a proximity group only makes them harder to get."""
    for name, group, size in groups(planned):
        if group.placement == "compact" and size.largest_fabric is not None:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule=f"{size.name} has InfiniBand, and a proximity placement group does not join machines over it",
                fix="use same_fabric",
            )


def size_is_reservable(planned: Planned) -> Iterator[Problem]:
    """A reservation can hold machines of the size."""
    for name, group, size in groups(planned):
        if group.capacity.kind == "reservation" and not size.reservable:
            yield Problem(
                path=f"cluster.nodes.{name}.capacity",
                rule=f"Azure reserves no capacity of {size.name}",
                fix="use {kind: on_demand}: with quota, patience, or a contract with Microsoft",
            )


def reservation_has_id(planned: Planned) -> Iterator[Problem]:
    """A reservation is named by its group's whole id, since it may be in any resource group."""
    for name, group, _ in groups(planned):
        reservation = group.capacity.reservation
        if reservation is not None and not _RESERVATION_ID.fullmatch(reservation):
            yield Problem(
                path=f"cluster.nodes.{name}.capacity.reservation",
                rule=f"{reservation} is not the id of a capacity reservation group",
                fix="write /subscriptions/.../resourceGroups/.../providers/Microsoft.Compute/capacityReservationGroups/"
                "<name>, as `az capacity reservation group show --query id` prints it",
            )


def reservation_has_zone(planned: Planned) -> Iterator[Problem]:
    """Reservations of sizes with GPUs are made in a zone, and hold machines of that zone only."""
    if azure_spec(planned).zone is not None:
        return
    for name, group, size in groups(planned):
        if group.capacity.kind == "reservation" and size.reservable and planned.plan.group(name)[0].machine.gpus:
            yield Problem(
                path="cluster.platform.zone",
                rule=f"is missing: a reservation of {size.name} is in a zone, and the machines of group {name} in none",
                fix="name the reservation's zone, as `az capacity reservation show --query zones` prints it",
            )


def reservation_stands_alone(planned: Planned) -> Iterator[Problem]:
    """Reserved capacity goes with no container."""
    for name, group, _ in groups(planned):
        if group.capacity.kind == "reservation" and group.placement != "none":
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule="reserved machines stand where the reservation is: Azure takes them into no availability set, "
                "single placement group or proximity placement group",
                fix="use none",
            )


def fabric_is_used(planned: Planned) -> Iterator[Problem]:
    """InfiniBand is paid for in every machine that has it, and joins none without a container."""
    for name, group, size in groups(planned):
        if group.placement == "none" and group.count > 1 and size.largest_fabric is not None:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule=f"machines of {size.name} that no container holds do not reach one another over InfiniBand",
                fix="use same_fabric",
            )


def fabric_is_supported(planned: Planned) -> Iterator[Problem]:
    """Microsoft documents InfiniBand for availability sets, and not for flexible scale sets."""
    for name, group, size in groups(planned):
        chosen = container_of(group, azure_spec(planned).zone)
        if chosen.kind is Kind.SCALE_SET and size.largest_fabric is not None and group.count > 1:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule=f"unverified: its machines go into a {chosen.kind} ({chosen.reason}), and Microsoft documents no "
                "InfiniBand for one; the nodes may be unable to reach one another over it",
                fix="use capacity: {kind: on_demand} and no platform.zone, which gives an availability set; or keep "
                "it, and run the all-reduce recipe over all nodes before you rely on it",
            )


def image_is_the_pinned_one(planned: Planned) -> Iterator[Problem]:
    """Facts of the image (driver, CUDA, Slurm) are recorded for the pinned version only."""
    version = azure_spec(planned).image_version
    if version is not None and not str(planned.plan.image.reference).endswith(f":{version}"):
        yield Problem(
            path="cluster.platform.image_version",
            rule=f"unverified: the driver, CUDA and Slurm versions of {version} were not compared with those of the "
            f"pinned {planned.plan.image.reference}",
            fix="compare the release notes of Azure/azhpc-images for both versions",
        )


def fabric_letter(planned: Planned) -> Iterator[Problem]:
    """One letter decides about InfiniBand, and tests on a single node never show it."""
    for name, group, size in groups(planned):
        if group.count > 1 and size.with_fabric is not None:
            yield Problem(
                path=f"cluster.nodes.{name}.machine",
                rule=f"{size.name} has no InfiniBand: its nodes train together over one Ethernet card",
                fix=f"use {size.with_fabric}, with placement: same_fabric",
            )


def container_told(planned: Planned) -> Iterator[Problem]:
    """What holds a group together, and why, is a choice that its owner can follow."""
    zone = azure_spec(planned).zone
    for name, group, _ in groups(planned):
        chosen = container_of(group, zone)
        if chosen.kind is not Kind.NOTHING:
            yield Problem(
                path=f"cluster.nodes.{name}.placement",
                rule=f"its machines go into one {chosen.kind}: {chosen.reason}",
                fix="change placement, capacity or platform.zone if you need another",
            )


def groups_apart(planned: Planned) -> Iterator[Problem]:
    """InfiniBand joins the machines of one group only."""
    fabrics = [name for name, group, _ in groups(planned) if group.placement == "same_fabric"]
    if len(fabrics) > 1:
        yield Problem(
            path="cluster.nodes",
            rule=f"the groups {', '.join(fabrics)} have a fabric each: a job on nodes of two of them finds no "
            "InfiniBand between them",
            fix="make one group of machines that should train together",
        )


def spot_told(planned: Planned) -> Iterator[Problem]:
    """One machine taken back stops the whole of a job."""
    for name, group, _ in groups(planned):
        if group.capacity.kind == "spot":
            yield Problem(
                path=f"cluster.nodes.{name}.capacity",
                rule="Azure may take a Spot machine back with 30 seconds' notice; it is stopped, keeps its disk and "
                "address, and the job starts again from its checkpoint when it is back",
                fix="start it again with `az vm start`, and give jobs a checkpoint and retries",
            )


def unconfirmed_told(planned: Planned) -> Iterator[Problem]:
    """Facts of sizes that no published page or code confirmed are not used in silence."""
    for name, group, size in groups(planned):
        if group.capacity.kind == "reservation" and "reservable" in size.unverified:
            yield Problem(
                path=f"cluster.nodes.{name}.capacity",
                rule=f"nobody's page or code confirmed that {size.name} can be reserved",
                fix="ask `az vm list-skus` for its capabilities before you rely on it",
            )


def azure_spec(planned: Planned) -> Spec:
    """Return the stack's `platform:` section. Raises TypeError for another platform's."""
    if not isinstance(planned.spec.platform, Spec):
        raise TypeError(f"the rules of Azure cannot judge a {type(planned.spec.platform).__name__}")
    return planned.spec.platform


def asked_for(planned: Planned) -> list[tuple[str, Size]]:
    """Return the size of the head and of each node group, with the place in the stack file that asks for it."""
    asked = {"cluster.head.machine": planned.plan.head.machine.name}
    asked |= {f"cluster.nodes.{name}.machine": group.machine for name, group in planned.spec.nodes.items()}
    return [(path, size_of(machine)) for path, machine in asked.items()]


def groups(planned: Planned) -> list[tuple[str, GroupSpec, Size]]:
    """Return each node group with its size."""
    return [(name, group, size_of(group.machine)) for name, group in planned.spec.nodes.items()]
