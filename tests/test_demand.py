"""What a plan asks of accounts: quotas and money."""

from __future__ import annotations

from dataclasses import replace

import pytest

from components.catalog import Machine
from components.demand import HourlyPrice, QuotaNeed, hourly_price, quota_needs
from components.plan import ClusterPlan


def machine(name: str, **facts: object) -> Machine:
    row = {"provider": "p", "vcpus": 96, "memory_mib": 4096, "gpus": 8, "gpu_type": "h100", "gpu_device": "/dev/nvidia"}
    fact = {"fabric": "ethernet", "source": "made up", "dated": "2026-01-01"}
    return Machine.model_validate({"name": name, **row, **fact, **facts})


@pytest.fixture
def plan(local_plan: ClusterPlan) -> ClusterPlan:
    """A head and two equal workers with quotas and prices of their own."""
    head = machine("head", gpus=0, vcpus=8, quotas={"small": "vcpus", "all": "vcpus"}, usd_per_hour=0.5)
    big = machine("big", quotas={"large": "gpus", "all": "vcpus", "networks": 9}, spot_quotas={"spot": "vcpus"})
    workers = tuple(replace(host, machine=big) for host in local_plan.workers)
    return replace(local_plan, place="eastus", head=replace(local_plan.head, machine=head), workers=workers)


def test_quotas_are_counted_in_their_own_units(plan: ClusterPlan) -> None:
    amounts = {need.quota: need.amount for need in quota_needs(plan)}
    assert amounts == {"small": 8, "all": 8 + 2 * 96, "large": 16, "networks": 18}
    assert quota_needs(plan)[0] == QuotaNeed(quota="small", place="eastus", amount=8)


def test_spot_machines_draw_on_another_quota(plan: ClusterPlan) -> None:
    first, second = plan.workers
    mixed = replace(plan, workers=(replace(first, spot=True), second))
    amounts = {need.quota: need.amount for need in quota_needs(mixed)}
    assert (amounts["spot"], amounts["large"]) == (96, 8)


def test_an_unknown_price_leaves_the_total_unknown(plan: ClusterPlan) -> None:
    price = hourly_price(plan)
    assert price == HourlyPrice(usd=0.5, unpriced=("big",))
    assert price.total is None


def test_known_prices_add_up(plan: ClusterPlan) -> None:
    workers = tuple(replace(host, machine=machine("big", usd_per_hour=10)) for host in plan.workers)
    assert hourly_price(replace(plan, workers=workers)).total == 20.5
