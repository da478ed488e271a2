"""From machines that answer to a cluster that works: hands keys and names over, then waits for the gate."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pulumi
from pulumi_command import remote

from components.handover import handover_files, pack
from components.keys import ClusterKeys
from components.plan import ClusterPlan
from components.platforms.base import Host

_DIAL_ATTEMPTS = 60
_DIAL_SECONDS = 15
"""A GPU machine may take a quarter of an hour from power-on to its first ssh."""


def _handover(plan: ClusterPlan, host_keys: Sequence[str], secrets: Sequence[str]) -> str:
    names = (host.name for host in plan.hosts)
    return pack(handover_files(plan, dict(zip(names, host_keys, strict=True)), *secrets))


class BringUp(pulumi.ComponentResource):
    """Turns a plan's machines into the cluster. Done means ready: every node says so and Slurm ran on each."""

    ready: pulumi.Output[str]
    """The gate's last words; known only when the cluster works."""
    host_keys: pulumi.Output[list[str]]
    """The hosts' ssh host keys, in the plan's order."""

    def __init__(
        self,
        name: str,
        plan: ClusterPlan,
        hosts: Sequence[Host],
        keys: ClusterKeys,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("trainyard:index:BringUp", name, {}, opts)
        head = hosts[0]
        connection = remote.ConnectionArgs(
            host=head.address,
            port=pulumi.Output.from_input(head.port).apply(float),
            user=head.user,
            private_key=keys.admin_private,
            host_key=head.host_key,
            proxy=head.proxy,
            dial_error_limit=_DIAL_ATTEMPTS,
            per_dial_timeout=_DIAL_SECONDS,
        )
        self.host_keys = pulumi.Output.all(*(host.host_key for host in hosts))
        secrets = pulumi.Output.all(keys.munge_key, keys.cluster_private)
        packed: pulumi.Output[str] = self.host_keys.apply(
            lambda known: secrets.apply(lambda told: _handover(plan, known, told))
        )
        content: pulumi.Output[str] = pulumi.Output.secret(packed)
        # A changed hand-over runs again in place; only a head with an empty disk makes it a new one.
        handover = remote.Command(
            f"{name}-handover",
            connection=connection,
            create="sudo trainyard-receive",
            stdin=content,
            triggers=[head.machine_id],
            logging=remote.Logging.STDERR,
            opts=pulumi.ResourceOptions(parent=self),
        )
        # Waits again whenever a machine is new or was started again, or what it was told has changed.
        machines = [_started(host) for host in hosts]
        gate = remote.Command(
            f"{name}-gate",
            connection=connection,
            create="sudo trainyard-gate",
            triggers=[*machines, pulumi.Output.unsecret(content.apply(_digest))],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[handover]),
        )
        # The gate speaks of nodes and stages only; nothing of the hand-over is in its words.
        self.ready = pulumi.Output.unsecret(gate.stdout).apply(_last_line)
        self.register_outputs({"ready": self.ready})


def _started(host: Host) -> pulumi.Output[str]:
    """Return what changes when the machine is a new one, and where somebody counts them with each of its starts."""
    if host.boots is None:
        return host.machine_id
    return pulumi.Output.concat(host.machine_id, ":", host.boots.apply(str))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text else ""


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
