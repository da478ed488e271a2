"""Checks of catalog facts: image versions, price regions, and unverified facts."""

from __future__ import annotations

from collections.abc import Iterator

from components.catalog import conflicts, driver_locks
from components.catalog.drivers import incompatible
from components.plan.checks.base import Broken, Level, Planned, check
from components.plan.demand import used_prices


@check("image-versions", Level.ERROR, "use a different image, or change the versions in components/catalog/images.yaml")
def image_versions(planned: Planned) -> Iterator[Broken]:
    """The versions pinned for the image are compatible."""
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
    if planned.plan.limits.max_usd_per_hour is None:
        return
    regions = dict.fromkeys(price.region for price in used_prices(plan) if price.region != plan.region)
    if regions:
        yield Broken(
            path="cluster.limits.max_usd_per_hour",
            rule=f"the limit is compared with list prices for {', '.join(regions)}, but machines in {plan.region} can "
            "cost up to a third more",
            words={"region": plan.region},
        )


@check("unconfirmed", Level.INFO, "compare them with your provider's documentation")
def unverified_facts(planned: Planned) -> Iterator[Broken]:
    """All facts about the machine types and the installed driver are stated on a public page or in public code."""
    slurm = planned.plan.scheduler == "slurm"
    lock = driver_locks().get(planned.plan.image.os)
    if lock is not None and lock.unverified and any(host.driver == "install" for host in planned.plan.hosts):
        rule = f"unverified: {', '.join(lock.unverified)} of driver {lock.driver} for {lock.name}"
        yield Broken(path="cluster.nodes", rule=rule)
    for machine in {host.machine.name: host.machine for host in planned.plan.hosts}.values():
        missing = [*machine.unverified, *(["the GPUs' NUMA nodes"] if slurm and machine.gpu_affinity_unknown else [])]
        if missing:
            yield Broken(
                path="cluster", rule=f"unverified: no public source states {', '.join(missing)} for {machine.name}"
            )
