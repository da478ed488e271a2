"""What a stack needs of a provider's account: quotas by name, and dollars per hour. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from components.catalog import Machine, Price, prices, service_prices, throughputs
from components.plan import ClusterPlan, HostPlan
from components.spec import ClusterSpec


@dataclass(frozen=True, kw_only=True)
class QuotaNeed:
    """`amount` of one quota in one place; the unit is the quota's own (vCPUs, GPUs, networks)."""

    quota: str
    place: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class HourlyPrice:
    """List prices of the machines. `usd` is the known part; `unpriced` names the types without a known price."""

    usd: float
    unpriced: tuple[str, ...]

    @property
    def total(self) -> float | None:
        """The whole, or None where a part of it is unknown."""
        return None if self.unpriced else self.usd


def quota_needs(plan: ClusterPlan) -> tuple[QuotaNeed, ...]:
    """Return how much of each quota the cluster needs: of the machines in the order of their first use, then others."""
    amounts: Counter[str] = Counter()
    for host in plan.hosts:
        quotas = host.machine.spot_quotas if host.spot else host.machine.quotas
        for name, counted in quotas.items():
            amounts[name] += _amount(host.machine, counted)
    for name, amount in plan.quotas:
        amounts[name] += amount
    return tuple(QuotaNeed(quota=name, place=plan.place, amount=amount) for name, amount in amounts.items())


def hourly_price(plan: ClusterPlan) -> HourlyPrice:
    """Return what the machines cost per hour. Reserved machines count with their price on demand, which is a ceiling.

    A Spot machine counts with its Spot price only; without one, its price is unknown.
    """
    prices = [
        (f"{host.machine.name} (Spot)" if host.spot else host.machine.name, host_usd(host)) for host in plan.hosts
    ]
    return HourlyPrice(
        usd=round(sum(price for _, price in prices if price is not None), 3),
        unpriced=_distinct(name for name, price in prices if price is None),
    )


def used_prices(plan: ClusterPlan) -> tuple[Price, ...]:
    """Return the list price that each host counts with, without those of unknown price."""
    listed = prices(plan.provider)
    return tuple(listed[host.machine.name] for host in plan.hosts if host_usd(host) is not None)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A shared storage or gateway that a stack buys. `usd` is dollars per hour, None if unknown; `priced` its date."""

    name: str
    usd: float | None
    region: str
    priced: str


def services(spec: ClusterSpec) -> tuple[Service, ...]:
    """Return what the stack buys beside machines and has a row in service_prices.yaml: storage, then gateway."""
    shared, platform = spec.storage.shared, spec.platform
    wanted = [(platform.storage_offer(shared.kind), shared.size_gib)]
    if spec.access.via == "bastion":
        wanted.append((platform.gateway_offer(), 0))
    listed = service_prices(platform.provider)
    return tuple(
        Service(name=name, usd=listed[name].usd(size), region=listed[name].region, priced=listed[name].priced)
        for name, size in wanted
        if name is not None
    )


def storage_mib_s(spec: ClusterSpec) -> float | None:
    """Return the MiB/s that the shared storage writes at most, or None if no source states it.

    Files that the head serves are limited by its disk, and by the machine's own limit where that is known.
    """
    shared, known = spec.storage.shared, throughputs(spec.platform.provider)
    offer = spec.platform.storage_offer(shared.kind)
    if offer is None or offer not in known:
        return None
    limits = [known[offer]]
    if shared.kind == "head_nfs" and spec.head.machine in known:
        limits.append(known[spec.head.machine])
    return min(limit.write_mib_s(shared.size_gib) for limit in limits)


def host_usd(host: HostPlan) -> float | None:
    """Return the list price of a host in dollars per hour, its Spot price for a Spot machine, or None if unknown."""
    return host.machine.spot_usd_per_hour if host.spot else host.machine.usd_per_hour


def _amount(machine: Machine, counted: str | int) -> int:
    if isinstance(counted, int):
        return counted
    return machine.vcpus if counted == "vcpus" else machine.gpus


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
