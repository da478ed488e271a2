"""Quota usage and price of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from components.catalog import Machine
from components.plan.plan import ClusterPlan
from components.platforms.demand import HourlyPrice, QuotaNeed, hourly_price, quota_needs
from components.spec.model import CloudSpec


def machine(name: str, **facts: object) -> Machine:
    row = {"provider": "p", "vcpus": 96, "memory_mib": 4096, "gpus": 8, "gpu_type": "h100", "gpu_device": "/dev/nvidia"}
    fact = {"fabric": "ethernet", "source": "made up", "dated": "2026-01-01"}
    return Machine.model_validate({"name": name, **row, **fact, **facts})


class EastUs(CloudSpec):
    """A cloud with the quota region eastus."""

    @property
    def quota_region(self) -> str:
        return "eastus"

    def offer(self, kind: str) -> str | None:
        return None


@pytest.fixture
def plan(local_plan: ClusterPlan) -> ClusterPlan:
    """A plan with a head and two identical workers, with quotas and prices."""
    head = machine("head", gpus=0, vcpus=8, quotas={"small": "vcpus", "all": "vcpus"}, usd_per_hour=0.5)
    big = machine("big", quotas={"large": "gpus", "all": "vcpus", "networks": 9}, spot_quotas={"spot": "vcpus"})
    workers = tuple(replace(host, machine=big) for host in local_plan.workers)
    cloud = EastUs(provider="local", image="debian-13")
    return replace(local_plan, platform=cloud, head=replace(local_plan.head, machine=head), workers=workers)


def test_quotas_have_different_units(plan: ClusterPlan) -> None:
    amounts = {need.quota: need.amount for need in quota_needs(plan)}
    assert amounts == {"small": 8, "all": 8 + 2 * 96, "large": 16, "networks": 18}
    assert quota_needs(plan)[0] == QuotaNeed(quota="small", region="eastus", amount=8)


def test_spot_machines_use_spot_quotas(plan: ClusterPlan) -> None:
    first, second = plan.workers
    mixed = replace(plan, workers=(replace(first, spot=True), second))
    amounts = {need.quota: need.amount for need in quota_needs(mixed)}
    assert (amounts["spot"], amounts["large"]) == (96, 8)


def test_total_is_unknown_if_a_price_is_unknown(plan: ClusterPlan) -> None:
    price = hourly_price(plan)
    assert price == HourlyPrice(usd=0.5, unpriced=("big",))
    assert price.total is None


def test_total_is_the_sum_of_known_prices(plan: ClusterPlan) -> None:
    workers = tuple(replace(host, machine=machine("big", usd_per_hour=10)) for host in plan.workers)
    assert hourly_price(replace(plan, workers=workers)).total == 20.5
