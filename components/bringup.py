"""From machines that answer to a cluster that works: hands keys and names over, then waits for the gate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

import pulumi
from pulumi_command import remote

from components.handover import handover_files, pack
from components.host_keys import ACCEPT, HostKeys
from components.keys import ClusterKeys
from components.plan import ClusterPlan
from components.platforms.base import Host
from components.tunnel import opened

_DIAL_ATTEMPTS = 190
"""Failed attempts to connect before the bring-up fails. A GPU machine may take a quarter of an hour from power-on to
its first SSH answer. A refused connection fails at once, so the pauses alone count: 0.1 s, growing by half up to 5 s,
which makes 911 s. If packets are dropped, each attempt also takes _DIAL_SECONDS, which makes 31 minutes in all
(pulumi/pulumi-command@010bd8e:provider/pkg/provider/remote/connection.go, dialWithRetry;
pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go; read 2026-11-22)."""
_DIAL_SECONDS = 5
_TUNNEL_ATTEMPTS = 5
"""Failed attempts through a tunnel: it has waited for the head's first SSH answer before."""
_TUNNEL_SECONDS = 30


def _handover(plan: ClusterPlan, host_keys: Mapping[str, str], secrets: Sequence[str]) -> str:
    return pack(handover_files(plan, host_keys, *secrets))


class BringUp(pulumi.ComponentResource):
    """Turns a plan's machines into the cluster. Done means ready: every node says so and Slurm ran on each."""

    ready: pulumi.Output[str]
    """The gate's last words; known only when the cluster works."""
    host_keys: pulumi.Output[dict[str, str]]
    """The hosts' SSH host keys by name."""

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
        self.host_keys = _host_keys(name, plan, hosts, pulumi.ResourceOptions(parent=self))
        connection = remote.ConnectionArgs(
            host=head.address if head.tunnel is None else opened(head.tunnel, head.port),
            port=pulumi.Output.from_input(head.port).apply(float),
            user=head.user,
            private_key=keys.admin_private,
            host_key=self.host_keys.apply(lambda known: known[plan.head.name]),
            proxy=head.proxy,
            dial_error_limit=_DIAL_ATTEMPTS if head.tunnel is None else _TUNNEL_ATTEMPTS,
            per_dial_timeout=_DIAL_SECONDS if head.tunnel is None else _TUNNEL_SECONDS,
        )
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


def _host_keys(
    name: str, plan: ClusterPlan, hosts: Sequence[Host], opts: pulumi.ResourceOptions
) -> pulumi.Output[dict[str, str]]:
    """Return the key of each host by name, out of what the platform offers now and what the stack knows already."""
    facts = pulumi.Output.all(*(fact for host in hosts for fact in (host.machine_id, host.host_key)))
    offers = facts.apply(
        lambda found: [
            {"name": host.plan.name, "machine": machine, "key": key, "declared": host.host_key_declared}
            for host, machine, key in zip(hosts, found[::2], found[1::2], strict=True)
        ]
    )
    accepted = [host for host in os.environ.get(ACCEPT, "").split(",") if host]
    known = HostKeys(f"{name}-host-keys", plan.name, offers, accepted, opts).known
    return known.apply(lambda hosts: {host: kept["key"] for host, kept in hosts.items()})


def _started(host: Host) -> pulumi.Output[str]:
    """Return what changes when the machine is a new one, and where somebody counts them with each of its starts."""
    if host.boots is None:
        return host.machine_id
    return pulumi.Output.concat(host.machine_id, ":", host.boots.apply(str))


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text else ""


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
