"""Checks of a complete plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

from components.catalog import conflicts, driver_locks, incompatible
from components.node.user_data import AccessKeys, render_user_data
from components.plan.check import Broken, Check, Level, Planned, check, checks_in
from components.plan.plan import ClusterPlan
from components.platforms.demand import (
    hourly_price,
    known_usd,
    quota_needs,
    spot_priced,
    storage_mib_s,
    unpriced,
    used_prices,
)
from components.platforms.registry import platform_facts
from components.spec.explain import nearest
from components.spec.model import CloudSpec
from components.spec.people import PEOPLE, FairUseSpec, accounts_of
from components.spec.people import conflicts as conflicts_of_users

_KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"  # as long as a real public key


@check("user-data-fits", Level.ERROR, "remove text under cloud-init/files, or download it in a bootstrap stage")
def user_data_fits(planned: Planned) -> Iterator[Broken]:
    """User-data does not exceed the platform's size limit. One host of each role and group is checked."""
    plan = planned.plan
    limit = platform_facts(plan.provider).user_data_limit
    for host in (plan.head, *(plan.group(name)[0] for name in plan.groups)):
        size = len(render_user_data(plan, host, AccessKeys(_KEY)).encode())
        if size > limit:
            yield Broken(
                path="cluster.platform",
                rule=f"user-data of {host.name} has {size} bytes, and the limit of {plan.provider} is {limit}",
            )


@check("disk-size", Level.ERROR, "use {largest} or less, or another kind of storage")
def disk_size(planned: Planned) -> Iterator[Broken]:
    """The shared storage on the head fits on one disk."""
    shared, largest = planned.plan.storage, platform_facts(planned.plan.provider).largest_disk_gib
    if shared.kind == "head_nfs" and largest is not None and shared.size_gib > largest:
        yield Broken(
            path="cluster.storage.shared.size_gib",
            rule=f"head_nfs uses one disk, and the largest has {largest} GiB, not {shared.size_gib}",
            words={"largest": largest},
        )


@check(
    "elastic-platform", Level.ERROR, "remove it", "add the program of your site as platform.power_command, or remove it"
)
def elastic_platform(planned: Planned) -> Iterator[Broken]:
    """Elastic groups are on a platform where the head can start and stop machines."""
    plan = planned.plan
    if platform_facts(plan.provider).power_channel(plan) is not None:
        return
    for name, group in plan.groups.items():
        if group.elastic is not None:
            rule = f"the head has no program or permission to start and stop machines of the platform {plan.provider}"
            yield Broken(path=f"cluster.nodes.{name}.elastic", rule=rule, fix=int(plan.uses_existing_hosts))


@check("elastic-capacity", Level.INFO, "set elastic.min to the number of nodes that must always be available")
def elastic_capacity(planned: Planned) -> Iterator[Broken]:
    """Clouds do not keep capacity for the stopped machines of elastic groups."""
    if not isinstance(planned.plan.platform, CloudSpec):
        return
    for name, group in planned.plan.groups.items():
        if group.elastic is not None and group.placement != "same_fabric":
            rule = (
                f"{planned.plan.provider} may have no capacity when a job needs a stopped machine. The job then waits, "
                "and the head tries again every ten minutes"
            )
            yield Broken(path=f"cluster.nodes.{name}.elastic", rule=rule)


@check("shared-path", Level.ERROR, "remove it, or use kind: external")
def shared_path(planned: Planned) -> Iterator[Broken]:
    """With head_nfs, only existing hosts have a path, because other platforms use a separate disk."""
    shared = planned.plan.storage
    if shared.kind == "head_nfs" and shared.path is not None and not planned.plan.uses_existing_hosts:
        yield Broken(
            path="cluster.storage.shared.path",
            rule=f"head_nfs has a path only on existing hosts, but {planned.plan.provider} creates its machines",
        )


_DOCUMENTATION = tuple(map(IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
"""Networks reserved for documentation (RFC 5737, section 3; read 2026-11-22)."""


@check("ssh-example", Level.WARNING, "write the network that you work from, for example your public address as a /32")
def ssh_network_is_real(planned: Planned) -> Iterator[Broken]:
    """The networks in access.allow_ssh_from are real networks, not the ranges that RFC 5737 reserves for examples."""
    for index, network in enumerate(planned.plan.access.allow_ssh_from):
        if any(network.subnet_of(example) for example in _DOCUMENTATION):
            yield Broken(
                path=f"cluster.access.allow_ssh_from.{index}",
                rule=f"{network} is reserved for documentation (RFC 5737), so `up` cannot connect to the head",
            )


@check("within-budget", Level.ERROR, "use fewer or smaller machines, or raise the limit")
def within_budget(planned: Planned) -> Iterator[Broken]:
    """The sum of the known list prices does not exceed the price limit."""
    limit = planned.plan.limits.max_usd_per_hour
    usd = known_usd(planned.plan)
    if limit is not None and usd > limit:
        yield Broken(
            path="cluster.limits.max_usd_per_hour",
            rule=f"machines, disks, addresses and services cost {usd:.2f} dollars an hour at list prices; the limit is "
            f"{limit:g}",
        )


@check("month-limit-has-prices", Level.ERROR, "remove it. limits.each_person.gpu_hours_per_month limits GPU hours")
def month_limit_has_prices(planned: Planned) -> Iterator[Broken]:
    """A stack with a monthly cost limit has a machine whose price is known."""
    if planned.plan.limits.max_usd_per_month is not None and not used_prices(planned.plan):
        rule = "no list price of a machine is recorded, so the head cannot compute what the cluster costs"
        yield Broken(path="cluster.limits.max_usd_per_month", rule=rule)


@check("idle-gpu-has-gpus", Level.ERROR, "remove it, or use a machine type with NVIDIA GPUs")
def idle_gpu_has_gpus(planned: Planned) -> Iterator[Broken]:
    """A stack that limits idle GPUs has a node group with GPUs that nvidia-smi can measure."""
    if planned.plan.limits.idle_gpu is None:
        return
    if not any(host.machine.gpus and host.machine.gpu_type != "fake" for host in planned.plan.workers):
        has_fakes = any(host.machine.gpus for host in planned.plan.workers)
        rule = "no node group has GPUs" + ("; nvidia-smi cannot measure fake GPUs" if has_fakes else "")
        yield Broken(path="cluster.limits.idle_gpu", rule=rule)


def _limits_with_prices(plan: ClusterPlan) -> list[str]:
    """Return the paths of the limits that are compared with list prices."""
    limits = {
        "hour": plan.limits.max_usd_per_hour,
        "month": plan.limits.max_usd_per_month if used_prices(plan) else None,
    }
    return [f"cluster.limits.max_usd_per_{time}" for time, limit in limits.items() if limit is not None]


@check(
    "limit-can-be-kept",
    Level.WARNING,
    "look up the price, subtract it from the limit, and add limit-can-be-kept to `silence`",
    "add limit-can-be-kept to `silence`, or compare the recorded prices with the cloud's current Spot prices",
)
def limit_is_effective(planned: Planned) -> Iterator[Broken]:
    """A stack with a price limit has only known prices and no Spot prices."""
    limited = _limits_with_prices(planned.plan)
    if not limited:
        return
    path = limited[0]
    if unknown := unpriced(planned.plan):
        rule = f"the cluster can cost more than the limit, because no price is recorded for {', '.join(unknown)}"
        yield Broken(path=path, rule=rule)
    if spot := spot_priced(planned.plan):
        rule = (
            f"the limit is compared with a recorded Spot price of {', '.join(spot)}, but Spot prices change at any time"
        )
        yield Broken(path=path, rule=rule, fix=1)


@check(
    "price",
    Level.INFO,
    "set cluster.limits.max_usd_per_hour to refuse changes that cost more",
    "the limit is {limit} dollars an hour (cluster.limits.max_usd_per_hour)",
    "to refuse changes that cost more, add cluster.limits.max_usd_per_hour; when {limit} dollars of a calendar month "
    "are spent, no job starts",
)
def report_price(planned: Planned) -> Iterator[Broken]:
    """The hourly price of the machines is reported."""
    price, known = hourly_price(planned.plan), used_prices(planned.plan)
    if not known:
        return
    names = unpriced(planned.plan)
    unknown = f", plus the unknown price of {', '.join(names)}" if names else ""
    more = known_usd(planned.plan) - price.usd
    spot = "; Spot prices change at any time" if spot_priced(planned.plan) else ""
    regions = ", ".join(dict.fromkeys(row.region for row in known))
    hour, month = planned.plan.limits.max_usd_per_hour, planned.plan.limits.max_usd_per_month
    fix, limit = (1, hour) if hour is not None else (2, month) if month is not None else (0, None)
    yield Broken(
        path="cluster",
        rule=f"the machines cost {price.usd:.2f} dollars an hour at list prices for {regions}, and storage, disks, "
        f"addresses and gateways {more:.2f} dollars{unknown}{spot}; network traffic costs extra",
        words={"limit": f"{limit:g}"} if limit is not None else {},
        fix=fix,
    )


@check(
    "quota",
    Level.INFO,
    "compare it with your account's usage and limits before `pulumi up`; a quota increase takes days",
)
def report_quota(planned: Planned) -> Iterator[Broken]:
    """The required quotas are reported, because a missing quota otherwise shows only when machines are created."""
    needs = quota_needs(planned.plan)
    if not needs:
        return
    words = ", ".join(f"{need.amount} of {need.quota}" for need in needs)
    yield Broken(path="cluster.nodes", rule=f"the stack needs free quota in {planned.plan.region}: {words}")


_FULL_MIB_PER_GPU = 70e9 / 2**20
"""Size of the largest checkpoint per GPU with 80 GB. With Adam in mixed precision, a parameter takes 16 bytes in memory
and 14 bytes in a checkpoint (ZeRO, arXiv 1910.02054)."""
_MIN_MIB_S_PER_GPU = 20
"""The write rate per GPU that stores this checkpoint within an hour. No published threshold was found."""


@check("storage-throughput", Level.WARNING, "use a larger size_gib, or a faster kind or tier")
def storage_throughput(planned: Planned) -> Iterator[Broken]:
    """The shared storage can write a checkpoint from all GPUs within an hour."""
    rate = storage_mib_s(planned.plan)
    gpus = sum(host.machine.gpus for host in planned.plan.nodes)
    if rate is None or not gpus or rate >= gpus * _MIN_MIB_S_PER_GPU:
        return
    shared = planned.plan.storage
    yield Broken(
        path="cluster.storage.shared",
        rule=f"{shared.kind} with {shared.size_gib} GiB writes at most {rate:.0f} MiB/s, which is {rate / gpus:.0f} "
        f"for each of {gpus} GPUs; a checkpoint that fills the GPUs' memory takes up to "
        f"{_FULL_MIB_PER_GPU * gpus / rate / 3600:.1f} hours. Smaller models take less time",
    )


@check("image-versions", Level.ERROR, "use a different image, or change the versions in components/catalog/images.yaml")
def image_versions(planned: Planned) -> Iterator[Broken]:
    """The image's pinned versions are compatible."""
    image = planned.plan.image
    for rule in incompatible(image.versions, conflicts()):
        yield Broken(path="cluster.platform.image", rule=f"{image.name} has {rule}")


@check(
    "price-region",
    Level.WARNING,
    "reduce the limit by a third, or add prices for {region} to components/catalog/prices.yaml",
)
def prices_match_region(planned: Planned) -> Iterator[Broken]:
    """If a price limit is set, all prices are for the stack's region."""
    plan = planned.plan
    limited = _limits_with_prices(plan)
    regions = dict.fromkeys(price.region for price in used_prices(plan) if price.region != plan.region)
    if limited and regions:
        yield Broken(
            path=limited[0],
            rule=f"the limit is compared with list prices for {', '.join(regions)}, but machines in {plan.region} can "
            "cost up to a third more",
            words={"region": plan.region},
        )


@check("unconfirmed", Level.INFO, "compare them with your provider's documentation")
def unverified_facts(planned: Planned) -> Iterator[Broken]:
    """Public pages or code state all facts about the machine types and the installed driver."""
    lock = driver_locks().get(planned.plan.image.os)
    if lock is not None and lock.unverified and any(host.driver == "install" for host in planned.plan.hosts):
        rule = f"unverified: {', '.join(lock.unverified)} of driver {lock.driver} for {lock.name}"
        yield Broken(path="cluster.nodes", rule=rule)
    for machine in {host.machine.name: host.machine for host in planned.plan.hosts}.values():
        uses_numa = planned.plan.scheduler == "slurm" and machine.gpu_affinity_unknown
        fields = ["quota names" if field == "quotas" else field for field in machine.unverified]
        missing = [*fields, *(["NUMA nodes of the GPUs"] if uses_numa else [])]
        if missing:
            yield Broken(
                path="cluster", rule=f"no public source confirms these facts about {machine.name}: {', '.join(missing)}"
            )


@check(
    "driver-available",
    Level.ERROR,
    "write `driver: install`, or use an image with a driver",
    "remove it, so that the nodes use the driver in the image",
    "use driver: image and install a driver yourself, or one of the operating systems {systems}",
    "use driver: image with an image or host that has a different driver, or use a different machine type",
    "correct the versions in components/catalog/drivers.yaml",
)
def driver_available(planned: Planned) -> Iterator[Broken]:
    """Each group with NVIDIA GPUs has a driver, either in the image or with locked versions."""
    plan = planned.plan
    image, lock = plan.image, driver_locks().get(plan.image.os)
    systems = {"systems": ", ".join(driver_locks())}
    for name in plan.groups:
        host = plan.group(name)[0]
        path = f"cluster.nodes.{name}.driver"
        needs_driver = host.machine.has_nvidia_gpus and not plan.uses_existing_hosts
        if host.driver == "image" and needs_driver and "driver" not in image.versions:
            yield Broken(path=path, rule=f"the image {image.name} has no NVIDIA driver")
        if host.driver != "install":
            continue
        if "driver" in image.versions:
            rule = f"the image {image.name} already has NVIDIA driver {image.versions['driver']}"
            yield Broken(path=path, rule=rule, fix=1)
        elif lock is None:
            rule = f"no driver versions are locked for {image.os}"
            yield Broken(path=path, rule=rule, words=systems, fix=2)
        else:
            if reason := lock.refused_gpus.get(host.machine.gpu_type or ""):
                yield Broken(path=path, rule=f"driver {lock.driver} on {host.machine.gpu_type} GPUs: {reason}", fix=3)
            for rule in incompatible(lock.versions, conflicts()):
                yield Broken(path=path, rule=f"the lock for {lock.name} has {rule}", fix=4)


@check("driver-without-gpus", Level.WARNING, "remove it, or silence the check to test the installation")
def driver_needs_gpus(planned: Planned) -> Iterator[Broken]:
    """Only groups with NVIDIA GPUs install a driver, because without GPUs, the bring-up fails afterwards."""
    for name in planned.plan.groups:
        host = planned.plan.group(name)[0]
        if host.driver == "install" and not host.machine.has_nvidia_gpus:
            yield Broken(
                path=f"cluster.nodes.{name}.driver",
                rule=f"{host.machine.name} has no NVIDIA GPU, so the bring-up fails after the installation",
            )


@check("users-distinct", Level.ERROR, "{fix}")
def users_distinct(planned: Planned) -> Iterator[Broken]:
    """Users can log in and have different names, uids and keys, and accounts have different gids."""
    for key, rule, fix in conflicts_of_users(planned.plan.users, planned.plan.ssh_ca):
        yield Broken(path=f"cluster.users.{key}", rule=rule, words={"fix": fix})


@check("users-supported", Level.ERROR, "remove it, and share the account of the job user")
def users_supported(planned: Planned) -> Iterator[Broken]:
    """Only machines that the platform creates have accounts for people, because their uids are not in use."""
    if planned.plan.users and planned.plan.uses_existing_hosts:
        yield Broken(path="cluster.users", rule="existing hosts have accounts of their owner, whose uids can be in use")


@check("users-storage", Level.ERROR, "use head_nfs or azure_netapp, or remove users")
def users_storage(planned: Planned) -> Iterator[Broken]:
    """Root on a worker is not root on the storage of people's files, with which root on the head works."""
    if planned.plan.users and planned.plan.storage.kind == "azure_files":
        rule = "an Azure Files share does not squash root, so root on a worker could become root on the head"
        yield Broken(path="cluster.storage.shared.kind", rule=rule)


@check("limits-known", Level.ERROR, "write {similar}", "use one of {known}", "remove it, or add `users`")
def limits_known(planned: Planned) -> Iterator[Broken]:
    """The people and accounts in `limits` exist."""
    plan, limits = planned.plan, planned.plan.limits
    if limits.each_person != FairUseSpec() and not plan.users:
        yield Broken(path="cluster.limits.each_person", rule="this cluster has no people", fix=2)
    people, accounts = [user.name for user in plan.users], [PEOPLE, *accounts_of(plan.users)]
    for key, what, names, known in (
        ("people", "user", limits.people, people),
        ("accounts", "user's account", limits.accounts, accounts),
    ):
        for name in sorted(names.keys() - (known if plan.users else [])):
            words = {"similar": nearest(name, known) or "", "known": ", ".join(known)}
            yield Broken(
                path=f"cluster.limits.{key}.{name}",
                rule=f"no {what} has this name" if plan.users else "this cluster has no people",
                words=words,
                fix=2 if not plan.users else 0 if words["similar"] else 1,
            )


PLAN_CHECKS: tuple[Check[Planned], ...] = checks_in(sys.modules[__name__])
