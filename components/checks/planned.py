"""Checks on a whole plan: what only the platform, or the rendered result, can tell."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.cloud_init import AccessKeys, render_user_data
from components.demand import hourly_price, quota_needs, used_prices
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


def within_budget(planned: Planned) -> Iterator[Problem]:
    """What the machines cost, as far as that is known, is within the stack's own limit."""
    limit, price = planned.spec.limits.max_usd_per_hour, hourly_price(planned.plan)
    if limit is not None and price.usd > limit:
        yield Problem(
            path="cluster.limits.max_usd_per_hour",
            rule=f"the machines cost {price.usd:.2f} dollars an hour by list prices, and the limit is {limit:.2f}",
            fix="use fewer or smaller machines, or raise the limit",
        )


def limit_can_be_kept(planned: Planned) -> Iterator[Problem]:
    """A limit on money holds nothing back where prices are unknown."""
    price = hourly_price(planned.plan)
    if planned.spec.limits.max_usd_per_hour is not None and price.unpriced:
        yield Problem(
            path="cluster.limits.max_usd_per_hour",
            rule=f"no price is recorded for {', '.join(price.unpriced)}, so the limit does not count them",
            fix="look their price up, and add it to components/catalog/prices.yaml with its source and date",
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
        rule=f"the machines cost {price.usd:.2f} dollars an hour by list prices of {regions}{beside}; Spot and "
        "reserved ones cost less, storage and traffic come on top",
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
        rule=f"the machines need free quota in {planned.plan.place}: {words}",
        fix="compare it with your account's usage and limits before `pulumi up`; more takes days to be granted",
    )
