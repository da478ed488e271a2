"""Checks on a whole plan: what only the platform, or the rendered result, can tell."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.cloud_init import AccessKeys, render_user_data
from components.demand import hourly_price, quota_needs, services, storage_mib_s, used_prices
from components.errors import Problem
from components.platforms import platform_class, platform_problems

_KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"
"""As long as a real public key: the real ones are made later."""


def platform_fits(planned: Planned) -> Iterator[Problem]:
    """The platform can hold the plan: whatever it alone knows."""
    yield from platform_problems(planned.spec, planned.plan)


def user_data_fits(planned: Planned) -> Iterator[Problem]:
    """The platform accepts user-data as long as ours. One host of each role and group stands for the others."""
    platform = platform_class(planned.plan.provider)
    limit = platform.user_data_limit
    plan = planned.plan
    for host in (plan.head, *(plan.group(name)[0] for name in plan.groups)):
        size = len(platform.wire_user_data(render_user_data(plan, host, AccessKeys(_KEY, _KEY))))
        if size > limit:
            yield Problem(
                path="cluster.platform",
                rule=f"user-data of {host.name} has {size} bytes, and {plan.provider} accepts {limit}",
                fix="ship less under cloud-init/files, or fetch it in a bootstrap stage",
            )


def shared_disk_fits(planned: Planned) -> Iterator[Problem]:
    """What the head shares lies on one disk."""
    shared, largest = planned.spec.storage.shared, platform_class(planned.plan.provider).largest_disk_gib
    if shared.kind == "head_nfs" and largest is not None and shared.size_gib > largest:
        yield Problem(
            path="cluster.storage.shared.size_gib",
            rule=f"the head shares one disk, and the largest has {largest} GiB, not {shared.size_gib}",
            fix=f"use {largest} or less, or a storage of another kind",
        )


def shared_path_served(planned: Planned) -> Iterator[Problem]:
    """A platform that makes the head puts /shared on a disk of its own; only an existing head has folders to name."""
    shared = planned.spec.storage.shared
    if shared.kind == "head_nfs" and shared.path is not None and not planned.plan.borrowed:
        yield Problem(
            path="cluster.storage.shared.path",
            rule=f"head_nfs takes a path on existing hosts only, and {planned.plan.provider} makes its machines",
            fix="remove it, or use kind: external",
        )


def within_budget(planned: Planned) -> Iterator[Problem]:
    """The known list prices of machines, shared storage and gateway are within the stack's limit."""
    limit = planned.spec.limits.max_usd_per_hour
    usd = hourly_price(planned.plan).usd + sum(service.usd or 0 for service in services(planned.spec))
    if limit is not None and usd > limit:
        yield Problem(
            path="cluster.limits.max_usd_per_hour",
            rule=f"machines, storage and gateway cost {usd:.2f} dollars an hour by list prices; the limit is {limit:g}",
            fix="use fewer or smaller machines, or raise the limit",
        )


def limit_can_be_kept(planned: Planned) -> Iterator[Problem]:
    """A limit on money holds nothing back where prices are unknown."""
    unknown = [*hourly_price(planned.plan).unpriced]
    unknown += [service.name for service in services(planned.spec) if service.usd is None]
    if planned.spec.limits.max_usd_per_hour is not None and unknown:
        yield Problem(
            path="cluster.limits.max_usd_per_hour",
            rule=f"no price is recorded for {', '.join(unknown)}, so the limit does not count them",
            fix="add their prices with source and date to prices.yaml or service_prices.yaml in components/catalog",
        )


def price_told(planned: Planned) -> Iterator[Problem]:
    """Whoever previews a stack reads what an hour of it costs."""
    price, known = hourly_price(planned.plan), used_prices(planned.plan)
    if not known:
        return
    beside = f", and {', '.join(price.unpriced)} beside that, for which no price is recorded" if price.unpriced else ""
    regions = ", ".join(dict.fromkeys(row.region for row in known))
    yield Problem(
        path="cluster",
        rule=f"the machines cost {price.usd:.2f} dollars an hour by list prices of {regions}{beside}; shared storage, "
        "gateway, boot disks, addresses and traffic cost extra",
        fix="set cluster.limits.max_usd_per_hour to have dearer changes refused",
    )


def quota_told(planned: Planned) -> Iterator[Problem]:
    """Whoever previews a stack reads which quotas it needs: a missing one shows only when machines are made."""
    needs = quota_needs(planned.plan)
    if not needs:
        return
    words = ", ".join(f"{need.amount} of {need.quota}" for need in needs)
    yield Problem(
        path="cluster.nodes",
        rule=f"the stack needs free quota in {planned.plan.place}: {words}",
        fix="compare it with your account's usage and limits before `pulumi up`; more takes days to be granted",
    )


_LEAST_MIB_S_PER_GPU = 20
"""This project's own floor: no published one was found. With Adam in mixed precision, a checkpoint has 14 of the 16
bytes per parameter that training holds (ZeRO, arXiv 1910.02054), so at most 70 GB for a full GPU of 80 GB. At 20 MiB/s
for each GPU, writing that takes an hour."""


def storage_is_fast(planned: Planned) -> Iterator[Problem]:
    """The shared storage writes fast enough for the checkpoints of the GPUs that share it."""
    rate = storage_mib_s(planned.spec)
    gpus = sum(host.machine.gpus for host in planned.plan.nodes)
    if rate is None or not gpus or rate >= gpus * _LEAST_MIB_S_PER_GPU:
        return
    shared = planned.spec.storage.shared
    yield Problem(
        path="cluster.storage.shared",
        rule=f"{shared.kind} with {shared.size_gib} GiB writes at most {rate:.0f} MiB/s, {rate / gpus:.0f} for each of "
        f"{gpus} GPUs, and less than {_LEAST_MIB_S_PER_GPU} makes checkpoints of large models take hours",
        fix="use a larger size_gib, or a faster kind or tier",
    )
