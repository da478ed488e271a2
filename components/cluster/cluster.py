"""The components of a stack: a cluster or, for `yard bake`, an image for its machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from components.cluster.bringup import NO_TUNNEL, BringUp, BringUpArgs, Registered
from components.cluster.busy import UnknownError, last_cluster_output, machine_digests, refuse_to_end_jobs
from components.cluster.leftovers import Leftovers
from components.cluster.outputs import Reach, cluster_outputs
from components.cluster.tunnel import require_tunnel
from components.keys import StackKeys, ssh_keypair
from components.node.user_data import JOB_USER
from components.plan.plan import ClusterPlan
from components.platforms.baker import BakeArgs
from components.platforms.base import Host, PlatformArgs
from components.platforms.registry import platform_baker, platform_class, platform_facts
from trainyard.machines import BAKED_IMAGE
from trainyard.outputs import Head, dumped

NO_MACHINES = "`pulumi up` ended before all machines and their SSH host keys were known"


def outputs_of(
    plan: ClusterPlan,
    hosts: Sequence[Host],
    endpoints: Sequence[Any],
    host_keys: Mapping[str, str],
    commands: Mapping[str, Sequence[str] | None],
) -> dict[str, Any]:
    """Return the `cluster` output with the workers in `host_keys`. `endpoints` alternates addresses and ports.

    `commands` contains the head's `tunnel` and `wake`.
    """
    direct = {host.plan.name for host in hosts if not host.through_head}
    endpoint_of = dict(
        zip((host.plan.name for host in hosts), zip(endpoints[::2], endpoints[1::2], strict=True), strict=True)
    )
    address, port = endpoint_of[plan.head.name]
    head = Head(
        name=plan.head.name,
        address=address,
        port=int(port),
        private_ip=str(plan.head.private_ip),
        user=JOB_USER,
        admin_user=hosts[0].user,
        host_key=host_keys[plan.head.name],
        proxy_jump=hosts[0].proxy_jump,
        **{name: None if command is None else tuple(command) for name, command in commands.items()},
    )
    workers = {
        host.name: Reach(
            host_key=host_keys[host.name],
            address=endpoint_of[host.name][0] if host.name in direct else None,
            port=int(endpoint_of[host.name][1]),
        )
        for host in plan.nodes
        if host.name in host_keys
    }
    return dumped(cluster_outputs(plan, head, workers))


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """Arguments of Cluster."""

    plan: ClusterPlan
    accepted_host_keys: Collection[str] = ()
    """Fingerprints of the SSH host keys that are allowed to replace a machine's recorded key."""
    end_jobs: Collection[str] = ()
    """IDs of the running jobs that a change is allowed to end."""
    alert_webhook: pulumi.Input[str] | None = None
    """The secret URL that receives alerts."""


class Cluster(pulumi.ComponentResource):
    """A cluster with its keys, machines, bring-up and outputs."""

    outputs: pulumi.Output[dict[str, Any]]
    """The `cluster` output (trainyard/outputs.py), which is known only after the gate has passed."""
    admin_private_key: pulumi.Output[str]
    """The admin's SSH private key, as a secret."""
    admin_certificate: pulumi.Output[str]
    """The certificate that the private key needs."""
    user_private_key: pulumi.Output[str]
    """The job user's SSH private key, as a secret."""
    bringup: BringUp

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:index:Cluster", name, {}, opts)
        plan = args.plan
        child = pulumi.ResourceOptions(parent=self)
        keys = StackKeys(name, plan.name, str(plan.head.private_ip), child)

        facts = platform_facts(plan.provider)
        if plan.access.via == "bastion" and facts.tunnel is not None:
            require_tunnel(facts.tunnel(plan))
        transformations: list[pulumi.ResourceTransformation] = []
        if facts.billed and not pulumi.runtime.is_dry_run():
            transformations.append(Leftovers(plan, facts).watch)
        platform = platform_class(plan.provider)
        made = platform(
            f"{name}-{plan.provider}",
            PlatformArgs(
                plan=plan,
                access=keys.access,
                machines=machine_digests(plan),
            ),
            pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(parent=self, transformations=transformations),
                refuse_to_end_jobs(keys.authority.admin_private, args.end_jobs),
            ),
        )
        self.admin_private_key = pulumi.Output.secret(keys.admin.private)
        self.admin_certificate = keys.admin.certificate
        self.user_private_key = pulumi.Output.secret(keys.user.private)
        self._plan, self._hosts = plan, made.hosts
        self.bringup = BringUp(
            f"{name}-bringup",
            BringUpArgs(
                plan=plan,
                platform=made,
                keys=keys,
                accepted_host_keys=args.accepted_host_keys,
                alert_webhook=args.alert_webhook,
            ),
            child,
        )
        self.outputs = self.bringup.ready.apply(lambda _: self.described(self.bringup.host_keys))
        self.register_outputs({"outputs": self.outputs})

    def described(
        self, host_keys: pulumi.Output[dict[str, str]], unready: str | None = None
    ) -> pulumi.Output[dict[str, Any]]:
        """Return the `cluster` output with the hosts in `host_keys`, which contains either the head or all hosts."""
        reason = {} if unready is None else {"unready": unready}
        commands = pulumi.Output.all(tunnel=self._hosts[0].tunnel, wake=self._hosts[0].wake)

        def with_keys(keys: dict[str, str]) -> pulumi.Output[dict[str, Any]]:
            hosts = [host for host in self._hosts if host.plan.name in keys]
            endpoints = pulumi.Output.all(*(value for host in hosts for value in (host.address, host.port)))
            # The `apply` calls are nested, because Output.all would convert every value in its arguments to an output.
            return commands.apply(
                lambda known: endpoints.apply(lambda found: outputs_of(self._plan, hosts, found, keys, known) | reason)
            )

        return host_keys.apply(with_keys)


async def early_outputs(cluster: Cluster) -> AsyncIterator[pulumi.Output[dict[str, Any]]]:
    """Yield the output when the head is known, when all machines are known, and after each step of the bring-up.

    The caller registers each output with the engine before it requests the next one, so that the outputs describe the
    existing machines even if `pulumi up` fails or is interrupted. If an update fails, the engine stores the outputs
    that were registered last, and keeps older outputs with other names
    (pulumi/pulumi@v3.250.0:pkg/resource/deploy/step_executor.go, executeRegisterResourceOutputs, and
    deployment_executor.go, Execute; read 2026-11-24; tests/components/cluster/test_bringup.py).

    The outputs of an earlier `up` remain until all machines are known. If that `up` made the cluster ready, `unready`
    stays None, because jobs can run on the other nodes after a failed step.
    """
    bringup = cluster.bringup
    registered = bringup.registered = Registered()
    try:
        before = await last_cluster_output()
    except UnknownError:
        before = {}
    if before is None:
        yield cluster.described(bringup.head_host_key, NO_MACHINES)
    registered.head.set()
    is_new = before is None or before.get("unready") is not None
    for unready, done in bringup.steps.items():
        yield cluster.described(bringup.host_keys, unready if is_new else None)
        # A command that fails immediately must not end the program while the outputs still state NO_TUNNEL.
        if unready != NO_TUNNEL:
            registered.machines.set()
        await done.future()


async def baked_image(plan: ClusterPlan, *, builds: bool) -> pulumi.Inputs:
    """Declare the image, which is named after the stack, and its builder if `builds` is set. Return the outputs.

    The outputs contain BAKED_IMAGE only once the builder has been deleted.
    """
    # Nobody can log in to the builder, because the private key is never stored.
    _, public = ssh_keypair("builder") if builds else ("", "")
    args = BakeArgs(plan=plan, name=pulumi.get_stack(), builds=builds, admin_key=public)
    baker = platform_baker(plan.provider)(args)
    await baker.image.is_known()
    return {} if builds else {BAKED_IMAGE: baker.image}
