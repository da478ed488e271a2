"""Checks on the facts that a plan rests on: versions that go together, prices of other regions, unverified facts."""

from __future__ import annotations

from collections.abc import Iterator

from components.catalog import conflicts
from components.checks.base import Planned
from components.demand import used_prices
from components.errors import Problem


def versions_agree(planned: Planned) -> Iterator[Problem]:
    """What is pinned with the image works together."""
    image = planned.plan.image
    driver, manager = image.versions.get("driver"), image.versions.get("fabric_manager")
    broken = [
        f"{', '.join(f'{name} {version}' for name, version in known.versions.items())}: {known.consequence}"
        for known in conflicts().values()
        if known.versions.items() <= image.versions.items()
    ]
    if manager is not None and manager != driver:
        broken.append(f"driver {driver} and fabric manager {manager}: GPUs behind NVSwitch work with equal ones only")
    for rule in broken:
        yield Problem(
            path="cluster.platform.image",
            rule=f"{image.name} has {rule}",
            fix="use another image, or pin other versions in components/catalog/images.yaml",
        )


def prices_are_of_here(planned: Planned) -> Iterator[Problem]:
    """A limit on money holds back less where the known prices are another region's."""
    plan = planned.plan
    if planned.spec.limits.max_usd_per_hour is None:
        return
    regions = dict.fromkeys(price.region for price in used_prices(plan) if price.region != plan.place)
    if regions:
        yield Problem(
            path="cluster.limits.max_usd_per_hour",
            rule=f"the limit is kept by list prices of {', '.join(regions)}, and machines in {plan.place} may cost up "
            "to a third more",
            fix=f"set the limit a third lower, or record prices of {plan.place} in components/catalog/prices.yaml",
        )


def unconfirmed_told(planned: Planned) -> Iterator[Problem]:
    """Report facts of machine types that no public page or code states."""
    slurm = planned.plan.scheduler == "slurm"
    for machine in {host.machine.name: host.machine for host in planned.plan.hosts}.values():
        missing = [*machine.unverified, *(["the GPUs' NUMA nodes"] if slurm and machine.gpu_affinity_unknown else [])]
        if missing:
            yield Problem(
                path="cluster",
                rule=f"unverified: no public source states {', '.join(missing)} of {machine.name}",
                fix="compare it with your provider's documentation",
            )
