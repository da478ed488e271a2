"""What a plan asks of a provider's accounts: quotas by name, and money by the hour. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from components.catalog import Machine, Price, prices
from components.plan import ClusterPlan


@dataclass(frozen=True, kw_only=True)
class QuotaNeed:
    """`amount` of one quota in one place; the unit is the quota's own (vCPUs, GPUs, networks)."""

    quota: str
    place: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class HourlyPrice:
    """List prices of the machines. `usd` is the known part; `unpriced` names the types that nobody's list had."""

    usd: float
    unpriced: tuple[str, ...]

    @property
    def total(self) -> float | None:
        """The whole, or None where a part of it is unknown."""
        return None if self.unpriced else self.usd


def quota_needs(plan: ClusterPlan) -> tuple[QuotaNeed, ...]:
    """Return what the machines take of each quota, in the order of their first use."""
    amounts: Counter[str] = Counter()
    for host in plan.hosts:
        quotas = host.machine.spot_quotas if host.spot_quota else host.machine.quotas
        for name, counted in quotas.items():
            amounts[name] += _amount(host.machine, counted)
    return tuple(QuotaNeed(quota=name, place=plan.place, amount=amount) for name, amount in amounts.items())


def hourly_price(plan: ClusterPlan) -> HourlyPrice:
    """Return what the machines cost by the hour. Spot and reserved ones count with their list price: a ceiling."""
    prices = [(host.machine.name, host.machine.usd_per_hour) for host in plan.hosts]
    return HourlyPrice(
        usd=round(sum(price for _, price in prices if price is not None), 3),
        unpriced=_distinct(name for name, price in prices if price is None),
    )


def used_prices(plan: ClusterPlan) -> tuple[Price, ...]:
    """Return the list price that each host counts with, without those of unknown price."""
    listed = prices(plan.provider)
    return tuple(listed[host.machine.name] for host in plan.hosts if host.machine.usd_per_hour is not None)


def _amount(machine: Machine, counted: str | int) -> int:
    if isinstance(counted, int):
        return counted
    return machine.vcpus if counted == "vcpus" else machine.gpus


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
