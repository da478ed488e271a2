"""Checks of a complete plan."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from components.node.user_data import AccessKeys, render_user_data
from components.plan.checks.base import Broken, Level, Planned, check
from components.plan.demand import hourly_price, quota_needs, services, spot_priced, storage_mib_s, used_prices
from components.platforms.registry import platform_facts

_KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"
"""A placeholder with the length of a real public key."""


@check("user-data-fits", Level.ERROR, "remove text under cloud-init/files, or download it in a bootstrap stage")
def user_data_fits(planned: Planned) -> Iterator[Broken]:
    """User-data does not exceed the size limit of the platform. One host of each role and group is checked."""
    plan = planned.plan
    limit = platform_facts(plan.provider).user_data_limit
    for host in (plan.head, *(plan.group(name)[0] for name in plan.groups)):
        size = len(render_user_data(plan, host, AccessKeys(_KEY, _KEY)).encode())
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


@check("shared-path", Level.ERROR, "remove it, or use kind: external")
def shared_path(planned: Planned) -> Iterator[Broken]:
    """With head_nfs, a path can be set only for existing hosts. Other platforms use a separate disk."""
    shared = planned.plan.storage
    if shared.kind == "head_nfs" and shared.path is not None and not planned.plan.uses_existing_hosts:
        yield Broken(
            path="cluster.storage.shared.path",
            rule=f"head_nfs has a path only on existing hosts, but {planned.plan.provider} creates its machines",
        )


_DOCUMENTATION = tuple(map(IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
"""Networks that are reserved for documentation (RFC 5737, section 3; read 2026-11-22)."""


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
    """The total of the known list prices for machines, shared storage and gateway does not exceed the price limit."""
    limit = planned.plan.limits.max_usd_per_hour
    usd = hourly_price(planned.plan).usd + sum(service.usd or 0 for service in services(planned.plan))
    if limit is not None and usd > limit:
        yield Broken(
            path="cluster.limits.max_usd_per_hour",
            rule=f"machines, storage and gateway cost {usd:.2f} dollars an hour at list prices; the limit is {limit:g}",
        )


@check(
    "limit-can-be-kept",
    Level.WARNING,
    "add limit-can-be-kept to `silence`, or record the prices in components/catalog",
    "add limit-can-be-kept to `silence`, or compare the recorded prices with the cloud's current Spot prices",
)
def limit_is_effective(planned: Planned) -> Iterator[Broken]:
    """A stack with a price limit has only known prices and no Spot prices."""
    if planned.plan.limits.max_usd_per_hour is None:
        return
    path = "cluster.limits.max_usd_per_hour"
    unknown = [*hourly_price(planned.plan).unpriced]
    unknown += [service.name for service in services(planned.plan) if service.usd is None]
    if unknown:
        rule = f"no price is recorded for {', '.join(unknown)}, so the limit does not include them"
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
    "the limit of {limit} dollars an hour refuses changes that cost more",
)
def report_price(planned: Planned) -> Iterator[Broken]:
    """The hourly price of the machines is reported."""
    price, known = hourly_price(planned.plan), used_prices(planned.plan)
    if not known:
        return
    unknown = f", plus the unknown price of {', '.join(price.unpriced)}" if price.unpriced else ""
    spot = "; Spot prices change at any time" if spot_priced(planned.plan) else ""
    regions = ", ".join(dict.fromkeys(row.region for row in known))
    limit = planned.plan.limits.max_usd_per_hour
    yield Broken(
        path="cluster",
        rule=f"the machines cost {price.usd:.2f} dollars an hour at list prices for {regions}{unknown}{spot}; shared "
        "storage, gateway, boot disks, addresses and traffic cost extra",
        words={"limit": f"{limit:g}"} if limit is not None else {},
        fix=0 if limit is None else 1,
    )


@check(
    "quota",
    Level.INFO,
    "compare it with your account's usage and limits before `pulumi up`; a quota increase takes days",
)
def report_quota(planned: Planned) -> Iterator[Broken]:
    """The required quotas are reported. Otherwise, a missing quota becomes visible only when machines are created."""
    needs = quota_needs(planned.plan)
    if not needs:
        return
    words = ", ".join(f"{need.amount} of {need.quota}" for need in needs)
    yield Broken(path="cluster.nodes", rule=f"the stack needs free quota in {planned.plan.region}: {words}")


_MIN_MIB_S_PER_GPU = 20
"""A threshold of this project, because no published threshold was found. With Adam in mixed precision, training stores
16 bytes per parameter in memory and 14 bytes in a checkpoint (ZeRO, arXiv 1910.02054). A checkpoint therefore has at
most 70 GB for each 80 GB GPU. At 20 MiB/s per GPU, writing the checkpoint takes an hour."""


_FULL_MIB_PER_GPU = 70e9 / 2**20
"""Largest checkpoint for each 80 GB GPU."""


@check("storage-throughput", Level.WARNING, "use a larger size_gib, or a faster kind or tier")
def storage_throughput(planned: Planned) -> Iterator[Broken]:
    """The shared storage can write the checkpoints from all GPUs within an hour."""
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
