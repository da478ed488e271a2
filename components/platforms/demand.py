"""A plan's quotas, prices and storage throughput."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from components.catalog import Count, Machine, Price, prices, service_prices, throughputs
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.registry import platform_facts
from components.spec.model import CloudSpec
from trainyard.faults import HEAD
from trainyard.on_times import SERVICES


@dataclass(frozen=True, kw_only=True)
class QuotaNeed:
    """The amount of one quota that a stack needs in a region, in the quota's unit (vCPUs, GPUs, networks)."""

    quota: str
    region: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class HourlyPrice:
    """The machines' total list price per hour."""

    usd: float
    """Sum of the known prices."""
    unpriced: tuple[str, ...]
    """Machine types without a known price."""

    @property
    def total(self) -> float | None:
        """Return the price of all machines, or None if any price is unknown."""
        return None if self.unpriced else self.usd


def quota_needs(plan: ClusterPlan) -> tuple[QuotaNeed, ...]:
    """Return how much of each quota the cluster needs. Quotas for machines come first."""
    amounts: Counter[str] = Counter()
    for host in plan.hosts:
        quotas = host.machine.spot_quotas if host.spot else host.machine.quotas
        for name, count in quotas.items():
            amounts[name] += _amount(host.machine, count)
    if other_quotas := platform_facts(plan.provider).quotas:
        amounts.update(other_quotas(plan))
    return tuple(QuotaNeed(quota=name, region=plan.region, amount=amount) for name, amount in amounts.items())


def hourly_price(plan: ClusterPlan) -> HourlyPrice:
    """Return the machines' price per hour.

    A reserved machine counts with its on-demand price, which is an upper limit. A Spot machine counts with its Spot
    price, which can be missing from the catalog.
    """
    unpriced = (host for host in plan.hosts if host_usd(host) is None)
    names = (f"{host.machine.name} (Spot)" if host.spot else host.machine.name for host in unpriced)
    usd = sum(host_usd(host) or 0 for host in plan.hosts)
    return HourlyPrice(usd=round(usd, 3), unpriced=tuple(dict.fromkeys(names)))


def _priced(plan: ClusterPlan) -> list[tuple[Price, bool]]:
    """For each host with a known price, return the catalog's price row and whether the Spot price is used."""
    listed = prices(plan.provider)
    return [(listed[host.machine.name], host.spot) for host in plan.hosts if host_usd(host) is not None]


def used_prices(plan: ClusterPlan) -> tuple[Price, ...]:
    """For each host with a known price, return the catalog's price row."""
    return tuple(row for row, _ in _priced(plan))


def used_sources(plan: ClusterPlan) -> tuple[str, ...]:
    """Return the sources of the hosts' known prices. Spot prices have their own sources."""
    return tuple(dict.fromkeys(row.spot_source if spot else row.source for row, spot in _priced(plan)))


def spot_priced(plan: ClusterPlan) -> tuple[str, ...]:
    """Return the machine types whose Spot price is used. Spot prices can change at any time."""
    return tuple(dict.fromkeys(row.name for row, spot in _priced(plan) if spot))


@dataclass(frozen=True, kw_only=True)
class Service:
    """The shared storage, the gateway or a `LineItem`, all of which also cost money while machines are off."""

    name: str
    usd: float | None
    """List price per hour, or None if unknown."""
    region: str
    priced: str
    """Date of the price."""


def known_usd(plan: ClusterPlan) -> float:
    """Return the sum of the known list prices of machines and services, in dollars per hour."""
    return hourly_price(plan).usd + sum(service.usd or 0 for service in services(plan))


def month_budget(plan: ClusterPlan) -> dict[str, Any] | None:
    """Return the section `budget` of repair.json (repair/budget.py), or None without limits.max_usd_per_month."""
    if plan.limits.max_usd_per_month is None:
        return None
    return {
        "usd_per_month": plan.limits.max_usd_per_month,
        "when_spent": plan.limits.when_spent,
        "usd_per_hour": usd_by_part(plan),
    }


def usd_by_part(plan: ClusterPlan) -> dict[str, float]:
    """Return the known list prices of HEAD, of SERVICES and of a node of each group (`Budget.usd_per_hour`)."""
    parts = {HEAD: host_usd(plan.head), SERVICES: sum(service.usd or 0 for service in services(plan))}
    nodes = {f"{plan.name}-{group}": host_usd(plan.group(group)[0]) for group in plan.groups}
    return {name: usd for name, usd in (parts | nodes).items() if usd is not None}


def unpriced(plan: ClusterPlan) -> tuple[str, ...]:
    """Return the names of the machine types and services whose prices are unknown."""
    return (*hourly_price(plan).unpriced, *(service.name for service in services(plan) if service.usd is None))


def traffic(provider: str) -> str:
    """Return the known prices of network traffic as text. No total includes them, because they depend on use."""
    rows = service_prices(provider)
    known = [
        f"{name} ${row.usd_per_gb:g} per GB" + (f" after {row.free_gb} GB a month" if row.free_gb else "")
        for name, key in (("to the internet", "internet-traffic"), ("through NAT", "nat-traffic"))
        if (row := rows.get(key)) is not None and row.usd_per_gb is not None
    ]
    return f"network traffic ({', '.join(known)})" if known else "network traffic"


def services(plan: ClusterPlan) -> tuple[Service, ...]:
    """Return the shared storage, the gateway, boot disks, public addresses and NAT.

    External storage and services of platforms without prices are omitted.
    """
    kinds = [plan.storage.kind, *(["bastion"] if plan.access.via == "bastion" else [])]
    rows = [row for kind in kinds if (row := _service_row(plan, kind))]
    return (
        *(_service(plan, row, row, plan.storage.size_gib) for row in rows),
        *(
            _service(plan, item.name, item.row, item.boot_disk_gib, item.count)
            for item in platform_facts(plan.provider).line_items(plan)
        ),
    )


def service_usd(plan: ClusterPlan, kind: str) -> float | None:
    """Return the hourly list price of `kind` (a kind of storage, or `bastion`) in dollars, or None if it is unknown."""
    row = _service_row(plan, kind)
    return service_prices(plan.provider)[row].usd(plan.storage.size_gib) if row else None


def storage_mib_s(plan: ClusterPlan) -> float | None:
    """Return the shared storage's maximum write throughput in MiB/s, or None if no source states it.

    With `head_nfs`, the limits of the head's disk and, if known, of the head's machine type apply.
    """
    shared, known = plan.storage, throughputs(plan.provider)
    row = _service_row(plan, shared.kind)
    if row is None or row not in known:
        return None
    limits = [known[row]]
    if shared.kind == "head_nfs" and plan.head.machine.name in known:
        limits.append(known[plan.head.machine.name])
    return min(limit.write_mib_s(shared.size_gib) for limit in limits)


def _service_row(plan: ClusterPlan, kind: str) -> str | None:
    return plan.platform.offer(kind) if isinstance(plan.platform, CloudSpec) else None


def _service(plan: ClusterPlan, name: str, row: str, size_gib: int, count: int = 1) -> Service:
    price = service_prices(plan.provider)[row]
    return Service(name=name, usd=price.usd(size_gib, count), region=price.region, priced=price.priced)


def host_usd(host: HostPlan) -> float | None:
    """Return a host's list price in dollars per hour, or None if it is unknown. Spot machines have a separate price."""
    return host.machine.spot_usd_per_hour if host.spot else host.machine.usd_per_hour


def firm_usd(host: HostPlan) -> float | None:
    """Return a host's list price in dollars per hour, or None if it is unknown or is a Spot price.

    Limits on the cost of running machines use this price, because a recorded Spot price can be too low.
    """
    return None if host.spot else host_usd(host)


def firm_total(plan: ClusterPlan) -> float | None:
    """Return the machines' list price in dollars per hour, or None if any price is unknown or is a Spot price."""
    return None if any(firm_usd(host) is None for host in plan.hosts) else hourly_price(plan).usd


def _amount(machine: Machine, count: Count) -> int:
    if isinstance(count, int):
        return count
    return machine.vcpus if count == "vcpus" else machine.gpus
