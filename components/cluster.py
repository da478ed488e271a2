"""Cluster: the one component a stack makes. Spec to plan to machines to bring-up to outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from components.bringup import BringUp
from components.catalog import fabrics
from components.cloud_init import AccessKeys, SharedFiles, render_user_data
from components.demand import hourly_price
from components.keys import ClusterKeys
from components.leftovers import Leftovers
from components.outputs import ClusterOutputs, HeadOut, NodeOut, TransportOut, dumped
from components.plan import ClusterPlan
from components.platforms import platform_class
from components.platforms.base import Host, PlatformArgs, Render
from components.spec import ClusterSpec
from components.tunnel import require

JOB_USER = "trainer"


def outputs_of(
    plan: ClusterPlan,
    hosts: Sequence[Host],
    places: Sequence[Any],
    host_keys: Mapping[str, str],
    tunnel: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the outputs contract as JSON. `places`: address and port of each host, in the plan's order."""
    direct = {host.plan.name for host in hosts if not host.through_head}
    reached = dict(zip((host.name for host in plan.hosts), zip(places[::2], places[1::2], strict=True), strict=True))
    address, port = reached[plan.head.name]
    head = HeadOut(
        name=plan.head.name,
        address=address,
        port=int(port),
        private_ip=str(plan.head.private_ip),
        user=JOB_USER,
        admin_user=hosts[0].user,
        host_key=host_keys[plan.head.name],
        proxy_jump=hosts[0].proxy_jump,
        tunnel=None if tunnel is None else tuple(tunnel),
    )
    nodes = tuple(
        NodeOut(
            name=host.name,
            private_ip=str(host.private_ip),
            group=str(host.group),
            gpus=host.machine.gpus,
            gpu_type=host.machine.gpu_type,
            fabric=host.machine.fabric,
            address=reached[host.name][0] if host.name in direct else None,
            port=int(reached[host.name][1]),
            host_key=host_keys[host.name],
        )
        for host in plan.nodes
    )
    first = {group: plan.group(group)[0].machine for group in plan.groups}
    fabric_of = {group: fabrics()[machine.fabric] for group, machine in first.items()}
    outputs = ClusterOutputs(
        name=plan.name,
        provider=plan.provider,
        scheduler=plan.scheduler,
        head=head,
        nodes=nodes,
        env={group: fabric.env for group, fabric in fabric_of.items()},
        transport={
            group: TransportOut(library_path=fabric.library_path, mounts=fabric.mounts)
            for group, fabric in fabric_of.items()
            if fabric.library_path or fabric.mounts
        },
        thresholds={group: machine.floors.node if machine.floors else None for group, machine in first.items()},
        pair_thresholds={group: machine.floors.pair if machine.floors else None for group, machine in first.items()},
        usd_per_hour=hourly_price(plan).total,
    )
    return dumped(outputs)


class Cluster(pulumi.ComponentResource):
    """A working cluster: what its machines share, and once `declare` has been awaited the machines and the outputs."""

    outputs: pulumi.Output[dict[str, Any]]
    """The contract of outputs.py, known only once the gate has passed."""
    ssh_private_key: pulumi.Output[str]
    """The admin's and job user's key; secret."""

    def __init__(
        self, name: str, spec: ClusterSpec, plan: ClusterPlan, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:index:Cluster", name, {}, opts)
        child = pulumi.ResourceOptions(parent=self)
        keys = ClusterKeys(f"{name}-keys", cluster=plan.name, opts=child)

        def user_data(shared: pulumi.Input[SharedFiles]) -> pulumi.Output[Render]:
            return pulumi.Output.all(keys.admin_public, keys.cluster_public, shared).apply(
                lambda facts: lambda host: render_user_data(plan, host, AccessKeys(facts[0], facts[1]), facts[2])
            )

        self._plan, self._keys = plan, keys
        kind = platform_class(plan.provider)
        if tunnel := kind.tunnel(spec):
            require(tunnel)
        watched: list[pulumi.ResourceTransformation] = []
        if kind.billed and Leftovers.can_watch():
            watched.append(Leftovers(spec, plan, kind).watch)
        self._platform = kind(
            f"{name}-{plan.provider}",
            PlatformArgs(
                spec=spec.platform,
                cluster=spec,
                plan=plan,
                user_data=user_data,
                admin_key=keys.admin_public,
                cluster_key=keys.cluster_public,
            ),
            pulumi.ResourceOptions(parent=self, transformations=watched),
        )
        self.ssh_private_key = pulumi.Output.secret(keys.admin_private)

    async def declare(self) -> None:
        """Declare the machines, one after the other, then the bring-up and the outputs."""
        plan, hosts = self._plan, list[Host]()
        for host in self._platform.hosts:
            hosts.append(host)
            # The engine hears of the first machines, and of what they stand on, while the last are being declared.
            await asyncio.sleep(0)
        bringup = BringUp(
            f"{self.pulumi_resource_name}-bringup", plan, hosts, self._keys, pulumi.ResourceOptions(parent=self)
        )
        places = pulumi.Output.all(*(place for host in hosts for place in (host.address, host.port)))
        # Within one another, since Output.all would make outputs of all that it is given, down to the last word. The
        # contract describes a cluster that works, so it waits for the gate.
        tunnel = pulumi.Output.from_input(hosts[0].tunnel)
        self.outputs = bringup.ready.apply(
            lambda _: bringup.host_keys.apply(
                lambda keys: tunnel.apply(lambda way: places.apply(lambda at: outputs_of(plan, hosts, at, keys, way)))
            )
        )
        self.register_outputs({"outputs": self.outputs})
