"""The bring-up of a cluster, which sends the hand-over to the head and then waits until the gate passes.

The hand-over contains keys and Slurm's configuration. The gate is a program that waits until all nodes are ready.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import remote

from components.cluster.busy import require_awake
from components.cluster.tunnel import open_tunnel
from components.host_keys import HostKeys
from components.keys import StackKeys
from components.node.bundle import Bundle, render_bundle
from components.node.handover import Secrets, bundle_message, handover_files, pack
from components.node.parameters import render_repair
from components.plan.plan import ClusterPlan
from components.platforms.base import Host, Platform
from components.platforms.demand import month_budget, usd_by_part
from components.platforms.registry import platform_facts

_DIAL_ATTEMPTS = 190
"""After this many failed connection attempts, the bring-up fails. A GPU machine can take 15 minutes from power-on until
sshd accepts connections. Refused connections fail immediately, so only the pauses between attempts take time. The
pauses grow from 0.1 s to 5 s by a factor of 1.5, 911 s in total. If packets are dropped, each attempt also takes
_DIAL_SECONDS: 31 minutes in total (pulumi/pulumi-command@010bd8e:provider/pkg/provider/remote/connection.go,
dialWithRetry; pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go; read 2026-11-22)."""
_DIAL_SECONDS = 5
_TUNNEL_ATTEMPTS = 5
"""Fewer attempts suffice through a tunnel, because the head's sshd has answered before the tunnel is used."""
_TUNNEL_SECONDS = 30
_IGNORED = ["addPreviousOutputInEnv"]
"""Command inputs whose changes are ignored. Without this input, pulumi-command logs warnings, because sshd refuses the
environment variables with the previous output (pulumi/pulumi-command@v1.2.1:provider/pkg/provider/remote/
commandOutputs.go, run; read 2026-11-24). Stacks from older versions of this project lack the input. Adding the input
there would run the commands again."""
_REGISTRATION_SECONDS = 300
"""Maximum delay of a failure. During the delay, other machines can finish booting and become part of the outputs."""

_INTERRUPTED = "context canceled"
"""The error of a command that Pulumi has cancelled (dialWithRetry in provider/pkg/provider/remote/connection.go of
pulumi/pulumi-command 1.2.1, read 2026-11-28)."""

_INSTALL_SECONDS = 900
"""Maximum time from the first login to the head until user-data has installed the node's programs. On Google Cloud,
cloud-init publishes the host key in its second stage, but runs the scripts of user-data in the last stage
(canonical/cloud-init 25.1.4: cloudinit/config/cc_ssh.py and DataSourceGCE.publish_host_keys; read and run in a virtual
machine on 2026-11-25)."""

NO_TUNNEL = "there is no tunnel to the head"
NO_BUNDLE = "the head has not received the bundle of scripts"
NO_FORMAT_PERMISSION = "the head has not received the permission to format its data disk"
NO_HANDOVER = "the head has not received the hand-over"
NO_GATE = "the gate on the head has not passed"


def _handover(plan: ClusterPlan, host_keys: Mapping[str, str], secrets: Mapping[str, Any], bundle: Bundle) -> str:
    channel = platform_facts(plan.provider).power_channel(plan)
    repair = render_repair(plan, channel, month_budget(plan), usd_by_part(plan))
    return pack(handover_files(plan, host_keys, Secrets(**secrets), bundle, repair))


class Registered:
    """Events that are set when the program has registered outputs with the head or with all machines."""

    def __init__(self) -> None:
        self.head, self.machines = asyncio.Event(), asyncio.Event()


@dataclass(frozen=True, kw_only=True)
class BringUpArgs:
    """Arguments of BringUp."""

    plan: ClusterPlan
    platform: Platform
    keys: StackKeys
    accepted_host_keys: Collection[str]
    """Fingerprints of the SSH host keys that are allowed to replace a machine's recorded key."""
    alert_webhook: pulumi.Input[str] | None = None
    """The secret URL that receives alerts."""


class BringUp(pulumi.ComponentResource):
    """Configures the machines as a cluster, and waits until every node is ready and has run a Slurm task."""

    ready: pulumi.Output[str]
    """The last line of the gate's output, which is known once the gate has passed."""
    host_keys: pulumi.Output[dict[str, str]]
    """SSH host keys by host name."""
    head_host_key: pulumi.Output[dict[str, str]]
    """Mapping from the head's name to its SSH host key, which is known before the workers' keys."""
    registered: Registered | None = None
    """None if the program does not register the outputs early."""
    steps: Mapping[str, pulumi.Output[Any]]
    """Outputs that become known after each step. Until then, an output's key states why the cluster is not ready."""

    def __init__(self, name: str, args: BringUpArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:index:BringUp", name, {}, opts)
        plan, keys, accepted = args.plan, args.keys, args.accepted_host_keys
        hosts = args.platform.hosts
        head = hosts[0]
        child = pulumi.ResourceOptions(parent=self)
        # The head receives the bundle before the workers' host keys are known, so that its stages start early.
        self.head_host_key = _host_keys(f"{name}-head", hosts[:1], plan.name, accepted, child)
        after_head = self._delay_failure("head", lambda registered: registered.head)
        after_machines = self._delay_failure("machines", lambda registered: registered.machines)
        self.host_keys = _host_keys(name, hosts, plan.name, accepted, pulumi.ResourceOptions.merge(child, after_head))

        def connection(keys_of_hosts: pulumi.Output[dict[str, str]]) -> remote.ConnectionArgs:
            return remote.ConnectionArgs(
                host=address,
                port=pulumi.Output.from_input(head.port).apply(float),
                user=head.user,
                private_key=keys.authority.admin_private,
                host_key=keys_of_hosts.apply(lambda known: known[plan.head.name]),
                proxy=head.proxy,
                dial_error_limit=_DIAL_ATTEMPTS if head.tunnel is None else _TUNNEL_ATTEMPTS,
                per_dial_timeout=_DIAL_SECONDS if head.tunnel is None else _TUNNEL_SECONDS,
            )

        address = head.address if head.tunnel is None else open_tunnel(head.tunnel, head.port)
        to_head, to_known = connection(self.head_host_key), connection(self.host_keys)
        early = pulumi.ResourceOptions.merge(child, after_machines)
        permissions = [_format_permission(name, head.data_disk, to_head, early)] if head.data_disk is not None else []
        bundle = pulumi.Output.from_input(args.platform.shared).apply(lambda shared: render_bundle(plan, shared))
        changed = pulumi.ResourceOptions(
            ignore_changes=_IGNORED, hooks=None if plan.idle_minutes is None else require_awake()
        )
        # A new bundle or hand-over only updates its resource, while a new head replaces both resources.
        sent = remote.Command(
            f"{name}-bundle",
            connection=to_head,
            create=_when_installed("trainyard-receive --bundle"),
            stdin=bundle.apply(bundle_message),
            triggers=[head.machine_id],
            logging=remote.Logging.STDERR,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions.merge(early, changed),
        )
        secrets = pulumi.Output.all(
            munge_key=keys.munge.key,
            cluster_key=keys.cluster.private,
            cluster_certificate=keys.cluster.certificate,
            database_password=keys.database.password,
            authority_public=keys.authority.admin_public,
            admin_public=keys.admin.public,
            cluster_public=keys.cluster.public,
            user_public=keys.user.public,
            alert_webhook=args.alert_webhook,
        )
        packed: pulumi.Output[str] = self.host_keys.apply(
            lambda known: secrets.apply(
                lambda values: bundle.apply(lambda rendered: _handover(plan, known, values, rendered))
            )
        )
        content: pulumi.Output[str] = pulumi.Output.secret(packed)
        handover = remote.Command(
            f"{name}-handover",
            connection=to_known,
            create="sudo trainyard-receive",
            stdin=content,
            triggers=[head.machine_id],
            logging=remote.Logging.STDERR,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions.merge(changed, pulumi.ResourceOptions(parent=self, depends_on=[sent])),
        )
        # The gate runs again if a machine is new or was restarted, or if the hand-over has changed.
        gate = remote.Command(
            f"{name}-gate",
            connection=to_known,
            create="sudo trainyard-gate",
            triggers=[
                *map(_boot_id, hosts),
                pulumi.Output.unsecret(content.apply(lambda text: hashlib.sha256(text.encode()).hexdigest())),
            ],
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[handover, *permissions], ignore_changes=_IGNORED),
        )
        # The gate's output contains the names of nodes and stages, but nothing from the hand-over.
        self.ready = pulumi.Output.unsecret(gate.stdout).apply(lambda text: (text or "").strip().rpartition("\n")[2])
        self.steps = {
            NO_TUNNEL: pulumi.Output.from_input(address),
            NO_BUNDLE: sent.id,
            NO_FORMAT_PERMISSION: pulumi.Output.all(*(permission.id for permission in permissions)),
            NO_HANDOVER: handover.id,
            NO_GATE: gate.id,
        }
        self.register_outputs({"ready": self.ready})

    def _delay_failure(self, name: str, event: Callable[[Registered], asyncio.Event]) -> pulumi.ResourceOptions | None:
        """Return options that delay a resource's failure until the outputs contain the head or all machines.

        Without the delay, the failure would end the update before the program registers these outputs. The delay is
        limited, because another machine might have failed as well.
        """
        if pulumi.runtime.is_dry_run():
            return None

        async def wait(args: pulumi.ErrorHookArgs) -> bool:
            # After an interruption, the engine finishes only the running operations, so no further machine registers.
            if self.registered is not None and _INTERRUPTED not in args.errors[0]:
                with suppress(TimeoutError):
                    await asyncio.wait_for(event(self.registered).wait(), _REGISTRATION_SECONDS)
            return False

        hook = pulumi.ErrorHook(f"trainyard-after-{name}", wait)
        return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(on_error=[hook]))


def _when_installed(command: str) -> str:
    """Return a command that waits until user-data has installed the node's program, and then runs it as root."""
    program = f"/usr/local/sbin/{command.partition(' ')[0]}"
    return f"for _ in $(seq {_INSTALL_SECONDS}); do [ ! -x {program} ] || break; sleep 1; done; sudo {command}"


def _format_permission(
    name: str,
    disk: pulumi.Output[str],
    connection: remote.ConnectionArgs,
    opts: pulumi.ResourceOptions,
) -> remote.Command:
    """Return the command that permits or refuses formatting the data disk with the unique ID `disk`.

    A new disk replaces the resource, which runs `create`. If only the head is replaced, `update` runs on the new head,
    which then refuses to format the disk even if it appears to be empty. Without `update`, pulumi-command would run
    `create` again (pulumi-command SDK, remote.Command, input `update`; read 2026-11-22).
    """
    return remote.Command(
        f"{name}-format-permission",
        connection=connection,
        create=_when_installed("trainyard-allow-format"),
        update=_when_installed("trainyard-allow-format --refuse"),
        triggers=[disk],
        add_previous_output_in_env=False,
        opts=opts,
    )


def _host_keys(
    name: str, hosts: Sequence[Host], cluster: str, accepted: Collection[str], opts: pulumi.ResourceOptions
) -> pulumi.Output[dict[str, str]]:
    """Return the hosts' SSH host keys by host name, merged from the platform's reports and the stack's state."""
    facts = pulumi.Output.all(*(fact for host in hosts for fact in (host.machine_id, host.host_key)))
    offers = facts.apply(
        lambda found: [
            {"name": host.plan.name, "machine": machine, "key": key, "declared": host.host_key_declared}
            for host, machine, key in zip(hosts, found[::2], found[1::2], strict=True)
        ]
    )
    known = HostKeys(f"{name}-host-keys", cluster, offers, accepted, opts).known
    return known.apply(lambda entries: {host: entry["key"] for host, entry in entries.items()})


def _boot_id(host: Host) -> pulumi.Output[str]:
    """Return a text that is different for each new machine and, if the platform counts boots, after each boot."""
    if host.boots is None:
        return host.machine_id
    return pulumi.Output.concat(host.machine_id, ":", host.boots.apply(str))
