"""The checks for Azure stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from components.plan.check import Broken, Level, Planned, check
from components.plan.plan import ClusterPlan
from components.platforms.azure.layout import PlacementKind, placement_of
from components.platforms.azure.spec import AzureSpec, Size, region_facts, size_of
from components.platforms.shared_rules import in_group, in_platform, in_storage
from components.spec.cluster import GroupSpec

_RESERVATION_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/capacityReservationGroups/[^/]+",
    re.IGNORECASE,
)


def _spec(planned: Planned) -> AzureSpec:
    return planned.plan.platform_spec(AzureSpec)


def _groups(planned: Planned) -> list[tuple[str, GroupSpec, Size]]:
    return [(name, group, size_of(group.machine)) for name, group in planned.plan.groups.items()]


def _sizes(planned: Planned) -> list[tuple[str, Size]]:
    """Return the machine sizes of the head and the node groups, each with its path in the stack file."""
    head = ("cluster.head.machine", size_of(planned.plan.head.machine.name))
    return [head, *((f"cluster.nodes.{name}.machine", size) for name, _, size in _groups(planned))]


@check(
    "azure-size-retired",
    Level.ERROR,
    "use a size with newer GPUs, for example Standard_NC24ads_A100_v4 or Standard_ND96amsr_A100_v4",
)
def size_not_retired(planned: Planned) -> Iterator[Broken]:
    """Azure has not retired any of the machine sizes in the stack."""
    for path, size in _sizes(planned):
        if size.retired is not None:
            yield Broken(path=path, rule=f"Azure retired {size.name} on {size.retired}")


@check(
    "azure-image",
    Level.ERROR,
    "build an image from microsoft-dsvm:ubuntu-hpc:2204-v100 with Ubuntu 24.04's Slurm and set it as "
    "cluster.platform.custom_image, or use a size with newer GPUs",
)
def image_has_drivers(planned: Planned) -> Iterator[Broken]:
    """The image contains a driver for the GPUs in each machine."""
    for path, size in _sizes(planned):
        if not size.stock_image and _spec(planned).custom_image is None:
            rule = (
                f"the pinned image contains NVIDIA's open kernel modules, which do not support the V100s in {size.name}"
            )
            yield Broken(path=path, rule=rule)


@check("azure-image-version", Level.ERROR, "remove image_version or custom_image")
def one_image_is_set(planned: Planned) -> Iterator[Broken]:
    """image_version is not set together with custom_image, which replaces the marketplace image."""
    spec = _spec(planned)
    if spec.custom_image is not None and spec.image_version is not None:
        yield in_platform(
            "image_version", "has no effect together with custom_image, whose id already includes a version"
        )


@check(
    "azure-fabric",
    Level.ERROR,
    "use compact or none",
    "use {with_fabric}, whose name differs by the letter r for RDMA",
)
def size_has_fabric(planned: Planned) -> Iterator[Broken]:
    """The machines of a group with placement same_fabric have InfiniBand."""
    for name, group, size in _groups(planned):
        if group.placement == "same_fabric" and size.largest_fabric is None:
            fix = 0 if size.with_fabric is None else 1
            yield in_group(name, "placement", f"{size.name} has no InfiniBand", fix=fix, with_fabric=size.with_fabric)


@check("azure-fabric-size", Level.ERROR, "use {largest} or fewer, or two groups with separate jobs")
def fabric_holds_group(planned: Planned) -> Iterator[Broken]:
    """A group with InfiniBand fits into one availability set or scale set."""
    for name, group, size in _groups(planned):
        largest, (kind, _) = size.largest_fabric, placement_of(planned.plan, name)
        if group.placement == "same_fabric" and largest is not None and group.count > largest:
            rule = (
                f"one {kind} contains at most {largest} machines, and InfiniBand works only within it; the group has "
                f"{group.count}"
            )
            yield in_group(name, "count", rule, largest=largest)


@check("azure-compact", Level.ERROR, "use same_fabric")
def compact_without_fabric(planned: Planned) -> Iterator[Broken]:
    """Sizes with InfiniBand use same_fabric instead of compact."""
    for name, group, size in _groups(planned):
        if group.placement == "compact" and size.largest_fabric is not None:
            rule = f"{size.name} has InfiniBand, but a proximity placement group does not connect machines over it"
            yield in_group(name, "placement", rule)


@check("azure-reservable", Level.ERROR, "use {kind: on_demand}, which needs quota and free capacity")
def size_is_reservable(planned: Planned) -> Iterator[Broken]:
    """Azure supports capacity reservations for the size of each reserved group."""
    for name, group, size in _groups(planned):
        if group.capacity.kind == "reservation" and not size.reservable:
            yield in_group(name, "capacity", f"Azure does not offer capacity reservations for {size.name}")


@check(
    "azure-reservation-id",
    Level.ERROR,
    "write /subscriptions/.../resourceGroups/.../providers/Microsoft.Compute/capacityReservationGroups/<name>, as "
    "`az capacity reservation group show --query id` prints it",
)
def reservation_has_id(planned: Planned) -> Iterator[Broken]:
    """A reservation is specified by the full id of a capacity reservation group."""
    for name, group, _ in _groups(planned):
        reservation = group.capacity.reservation
        if reservation is not None and not _RESERVATION_ID.fullmatch(reservation):
            yield in_group(name, "capacity.reservation", f"{reservation} is not the id of a capacity reservation group")


@check(
    "azure-reservation-zone",
    Level.ERROR,
    "set the reservation's zone, as `az capacity reservation show --query zones` prints it",
)
def reservation_has_zone(planned: Planned) -> Iterator[Broken]:
    """A stack with reserved GPU machines sets the zone of the reservation."""
    for name, group, size in _groups(planned):
        is_held = group.capacity.kind == "reservation" and size.reservable and planned.plan.group(name)[0].machine.gpus
        if is_held and _spec(planned).zone is None:
            rule = f"is missing: group {name} uses a reservation of {size.name}, and such reservations are zonal"
            yield in_platform("zone", rule)


@check("azure-reservation-placement", Level.ERROR, "use none")
def reservation_without_placement(planned: Planned) -> Iterator[Broken]:
    """Node groups in capacity reservations do not set a placement."""
    for name, group, _ in _groups(planned):
        if group.capacity.kind == "reservation" and group.placement != "none":
            yield in_group(
                name,
                "placement",
                "Azure places reserved machines in their reservation, and rejects an availability set, a single "
                "placement group or a proximity placement group for them",
            )


@check("azure-fabric-idle", Level.WARNING, "use same_fabric")
def fabric_is_used(planned: Planned) -> Iterator[Broken]:
    """A group of machines with InfiniBand uses the placement same_fabric."""
    for name, group, size in _groups(planned):
        if group.placement == "none" and group.count > 1 and size.largest_fabric is not None:
            rule = f"machines of {size.name} need an availability set or scale set to use InfiniBand"
            yield in_group(name, "placement", rule)


@check(
    "azure-fabric-unsupported",
    Level.WARNING,
    "use capacity: {kind: on_demand} and no platform.zone, which gives an availability set; or keep it, and run "
    "the all-reduce recipe over all nodes before you rely on it",
)
def fabric_is_supported(planned: Planned) -> Iterator[Broken]:
    """Groups with InfiniBand are in availability sets, because InfiniBand is not documented for flexible scale sets."""
    for name, group, size in _groups(planned):
        kind, reason = placement_of(planned.plan, name)
        if kind is PlacementKind.SCALE_SET and size.largest_fabric is not None and group.count > 1:
            rule = (
                f"unverified: its machines go into a {kind} ({reason}), and Microsoft does not document InfiniBand for "
                "this resource; the nodes may have no InfiniBand between them"
            )
            yield in_group(name, "placement", rule)


@check("azure-image-unverified", Level.INFO, "compare the release notes of Azure/azhpc-images for both versions")
def image_is_the_pinned_one(planned: Planned) -> Iterator[Broken]:
    """The image is the pinned version, whose driver, CUDA and Slurm versions are in the catalog."""
    version, pinned = _spec(planned).image_version, planned.plan.image.reference
    if version is not None and not str(pinned).endswith(f":{version}"):
        rule = (
            f"unverified: the driver, CUDA and Slurm versions in {version} were not compared with those in the pinned "
            f"{pinned}"
        )
        yield in_platform("image_version", rule)


@check("azure-fabric-letter", Level.WARNING, "use {with_fabric}, with placement: same_fabric")
def fabric_variant(planned: Planned) -> Iterator[Broken]:
    """A group with several nodes uses the size variant with InfiniBand, if such a variant exists."""
    for name, group, size in _groups(planned):
        if group.count > 1 and size.with_fabric is not None:
            rule = f"{size.name} has no InfiniBand: its nodes communicate over Ethernet"
            yield in_group(name, "machine", rule, with_fabric=size.with_fabric)


@check("azure-placement", Level.INFO, "change placement, capacity or platform.zone if you need a different one")
def placement_reported(planned: Planned) -> Iterator[Broken]:
    """A note names the availability set, scale set or proximity placement group of each node group."""
    for name in planned.plan.groups:
        kind, reason = placement_of(planned.plan, name)
        if kind is not PlacementKind.NONE:
            yield in_group(name, "placement", f"its machines go into one {kind}: {reason}")


@check("azure-elastic-fabric", Level.WARNING, "remove elastic, or set elastic.min to the number of nodes that you need")
def stopped_machines_keep_their_fabric(planned: Planned) -> Iterator[Broken]:
    """Machines of an elastic group are not bound to one InfiniBand fabric while they are stopped."""
    # A start is tried only in the cluster of servers that has the set's other machines (Azure blog, "Allocation Failure
    # and Remediation", 2015-03-19; read 2026-11-26).
    for name, group, _ in _groups(planned):
        if group.elastic is not None and group.placement == "same_fabric":
            rule = (
                "a stopped machine can start only on servers that are connected to the group's other machines, so "
                "Azure may have no capacity for it when a job needs it"
            )
            yield in_group(name, "elastic", rule)


@check("azure-groups-apart", Level.INFO, "put machines that run one job into one group")
def separate_fabrics_reported(planned: Planned) -> Iterator[Broken]:
    """A note names node groups whose fabrics are not connected."""
    fabrics = [name for name, group, _ in _groups(planned) if group.placement == "same_fabric"]
    if len(fabrics) > 1:
        rule = (
            f"the groups {', '.join(fabrics)} have separate fabrics: a job on nodes from two groups has no InfiniBand "
            "between the groups"
        )
        yield Broken(path="cluster.nodes", rule=rule)


@check("azure-spot", Level.INFO, "start it with `az vm start`, and write checkpoints and set retries in jobs")
def spot_reported(planned: Planned) -> Iterator[Broken]:
    """A note describes the effect of Spot evictions on jobs."""
    for name, group, _ in _groups(planned):
        if group.capacity.kind == "spot":
            yield in_group(
                name,
                "capacity",
                "Azure can evict a Spot machine with 30 seconds' notice; the machine stops and keeps its disk and "
                "address, and the job continues from its checkpoint after the machine is started again",
            )


@check("azure-unverified", Level.INFO, "check its capabilities with `az vm list-skus`")
def unverified_reported(planned: Planned) -> Iterator[Broken]:
    """A note lists unverified facts about the sizes of reserved machines."""
    for name, group, size in _groups(planned):
        if group.capacity.kind == "reservation" and "reservable" in size.unverified:
            yield in_group(name, "capacity", f"unverified: no public source states that {size.name} can be reserved")


_INFINIBAND_NETWORK = IPv4Network("172.16.0.0/16")
"""The network that Azure reserves for RDMA. InfiniBand fails if the virtual network overlaps it (setup-infiniband
page)."""


@check("azure-region", Level.ERROR, "use one of {regions}")
def region_offers(planned: Planned) -> Iterator[Broken]:
    """Microsoft's price list contains every machine type in the stack for the stack's region."""
    region = _spec(planned).region
    for machine in dict.fromkeys(size.name for _, size in _sizes(planned)):
        regions = region_facts().machines.get(machine)
        if regions is not None and region not in regions:
            rule = f"{machine} is not available in {region} (price list of {region_facts().listed})"
            yield in_platform("region", rule, regions=", ".join(regions))


@check("azure-zone", Level.ERROR, "remove it, or use a region with zones, for example eastus")
def region_has_zones(planned: Planned) -> Iterator[Broken]:
    """A stack sets a zone only in a region with availability zones."""
    spec = _spec(planned)
    if spec.zone is not None and spec.region not in region_facts().regions.with_zones:
        yield in_platform("zone", f"{spec.region} has no availability zones")


@check("azure-infiniband-network", Level.ERROR, "choose a different private range, for example one in 10.0.0.0/8")
def infiniband_network_free(planned: Planned) -> Iterator[Broken]:
    """The stack's networks do not overlap Azure's RDMA network."""
    if all(size.largest_fabric is None for _, size in _sizes(planned)):
        return
    networks = {"cluster.network.cidr": planned.plan.network}
    if _needs_services(planned.plan):
        networks["cluster.platform.services_cidr"] = _spec(planned).services_cidr
    for path, cidr in networks.items():
        if cidr.overlaps(_INFINIBAND_NETWORK):
            rule = f"{cidr} overlaps {_INFINIBAND_NETWORK}, which Azure uses for InfiniBand inside every machine"
            yield Broken(path=path, rule=rule)


@check("azure-services-network", Level.ERROR, "choose a different private range, for example 10.78.0.0/24")
def services_do_not_overlap(planned: Planned) -> Iterator[Broken]:
    """The network for Bastion and NetApp Files does not overlap the cluster's network."""
    services, network = _spec(planned).services_cidr, planned.plan.network
    if _needs_services(planned.plan) and services.overlaps(network):
        rule = (
            f"{services} overlaps the cluster's network {network}, and Bastion and NetApp Files need separate subnets"
        )
        yield in_platform("services_cidr", rule)


@check("azure-tunnel", Level.INFO, "install the Azure CLI (az) where they run, and log in with `az login`")
def tunnel_reported(planned: Planned) -> Iterator[Broken]:
    """A note names the command-line tool that opens the tunnel to the head."""
    if planned.plan.access.via == "bastion":
        rule = "`pulumi up` and `yard` connect to the head through a tunnel that `az network bastion tunnel` opens"
        yield Broken(path="cluster.access.via", rule=rule)


def _needs_services(plan: ClusterPlan) -> bool:
    return plan.access.via == "bastion" or plan.storage.kind == "azure_netapp"


_TIB = 1024


@check("azure-storage-kind", Level.ERROR, "use azure_netapp, azure_files, head_nfs or external")
def kind_known(planned: Planned) -> Iterator[Broken]:
    """Azure supports the kind of shared storage."""
    if planned.plan.storage.kind == "filestore":
        yield in_storage("kind", "Azure does not offer filestore")


@check("azure-netapp-pool", Level.WARNING, "use {whole}")
def pool_size_is_whole(planned: Planned) -> Iterator[Broken]:
    """The size of a NetApp pool is a whole number of TiB."""
    shared = planned.plan.storage
    rest = -shared.size_gib % _TIB
    if shared.kind == "azure_netapp" and rest:
        rule = f"NetApp Files is billed in whole TiB: {rest} GiB of the pool would be unused"
        yield in_storage("size_gib", rule, whole=shared.size_gib + rest)


@check("azure-files-open", Level.INFO, "use azure_netapp if only the head should have root access to the share")
def files_limits_reported(planned: Planned) -> Iterator[Broken]:
    """A note lists the limits of Azure Files over NFS: no encryption in transit, and no root squash for workers."""
    if planned.plan.storage.kind == "azure_files":
        rule = "NFS to Azure Files is not encrypted in transit, and root on every node has root access to the share"
        yield in_storage("kind", rule)
