"""Builds the `cluster` output from the plan and from facts that are known only after deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from components.catalog import fabrics
from components.plan.plan import ClusterPlan
from components.platforms.demand import firm_total, host_usd, services
from components.spec.model import CloudSpec
from trainyard.outputs import Cluster, Head, Node, Prices, Transport


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a worker can be reached. `address` is None if the head is the jump host."""

    host_key: str
    address: str | None
    port: int


def cluster_outputs(plan: ClusterPlan, head: Head, workers: Mapping[str, Reach]) -> Cluster:
    """Return the output. `workers` contains only workers whose machines are known."""
    first = {group: plan.group(group)[0].machine for group in plan.groups}
    fabric_of = {group: fabrics()[machine.fabric] for group, machine in first.items()}
    return Cluster(
        name=plan.name,
        provider=plan.provider,
        scheduler=plan.scheduler,
        head=head,
        nodes=tuple(
            Node(
                name=host.name,
                private_ip=str(host.private_ip),
                group=str(host.group),
                gpus=host.machine.gpus,
                gpu_type=host.machine.gpu_type,
                fabric=host.machine.fabric,
                address=workers[host.name].address,
                port=workers[host.name].port,
                host_key=workers[host.name].host_key,
            )
            for host in plan.nodes
            if host.name in workers
        ),
        env={group: fabric.env for group, fabric in fabric_of.items()},
        transport={
            group: Transport(library_path=fabric.library_path, mounts=fabric.mounts)
            for group, fabric in fabric_of.items()
            if fabric.library_path or fabric.mounts
        },
        thresholds={group: machine.floors.node if machine.floors else None for group, machine in first.items()},
        pair_thresholds={group: machine.floors.pair if machine.floors else None for group, machine in first.items()},
        spares={group: section.spares for group, section in plan.groups.items() if section.spares},
        repair=plan.repair,
        users={user.name: "admin" if user.admin else "user" for user in plan.users},
        # Existing hosts have other users, so only the job user's home is shared (stage 50-storage).
        home_path=f"/home/{head.user}" if plan.uses_existing_hosts else "/home",
        usd_per_hour=firm_total(plan),
        prices=_prices(plan),
    )


def _prices(plan: ClusterPlan) -> Prices | None:
    if not isinstance(plan.platform, CloudSpec):
        return None
    used = services(plan)
    known = [service.usd for service in used if service.usd is not None]
    return Prices(
        unpriced=tuple(service.name for service in used if service.usd is None),
        head=host_usd(plan.head),
        nodes={group: host_usd(plan.group(group)[0]) for group in plan.groups},
        services=round(sum(known), 4) if known else None,
        spot=tuple(group for group in plan.groups if plan.group(group)[0].spot),
    )
