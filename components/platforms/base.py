"""A platform's interface: its arguments and its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pulumi

from components.node.parameters import ON_HEAD, SharedFiles
from components.node.user_data import ADMIN_USER, AccessKeys, Birth, birth_of
from components.plan.plan import ClusterPlan, HostPlan
from components.spec.model import CloudSpec
from trainyard.errors import PlatformError

if TYPE_CHECKING:
    from pulumi_command.remote import ProxyConnectionArgs

MACHINES = "machines"
"""Name of the component input for the machines' digests, which are keyed by host name."""
_WAIT_SECONDS = 900
"""Maximum wait for a host key. A machine with eight GPUs can take half of this time to start."""
_LONGEST_FIRST_BOOT = timedelta(minutes=20)
"""A machine that is older and has not published its key is stopped or broken."""


def host_key_wait(created: str | None) -> int:
    """Return the number of seconds to wait for the host key of a machine that was created at `created` (RFC 3339).

    In a preview, for older machines and for machines of unknown age, the number is 0: the key is read only once.
    """
    if pulumi.runtime.is_dry_run() or not created:
        return 0
    return _WAIT_SECONDS if datetime.now(UTC) - datetime.fromisoformat(created) < _LONGEST_FIRST_BOOT else 0


def moved_from(opts: pulumi.ResourceOptions | None) -> Sequence[pulumi.Alias] | None:
    """Return aliases for a child of a component with the options `opts`, or None if the component has no parent.

    In older versions, every component had a parent, and the resource was a child of this parent. With the aliases, `up`
    finds the resource in an older version's state instead of replacing it.
    """
    if opts is None or opts.parent is None:
        return None
    return [pulumi.Alias(parent=opts.parent)]


INPUT = "sharedDiskGib"
"""Name of the component input for the size of the head's data disk."""


def refuse_smaller(args: pulumi.ResourceHookArgs) -> None:
    """Raise PlatformError if the disk in the new inputs is smaller than the disk in the inputs of the last `up`."""
    old, new = ((inputs or {}).get(INPUT) for inputs in (args.old_inputs, args.new_inputs))
    if old is None or new is None or new >= old:
        return
    raise PlatformError(
        f"cluster.storage.shared.size_gib: the disk has {old:g} GiB and cannot shrink to {new:g} GiB; an empty disk "
        f"would replace it. Nothing was changed. Fix: use {old:g} or more. To start over with a smaller disk, copy the "
        "files to a different location, destroy the cluster and create it again"
    )


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host in the cluster."""

    plan: HostPlan
    address: pulumi.Input[str]
    """The address for SSH connections, which can differ from the private address."""
    port: pulumi.Input[int]
    user: str
    """The admin user, with sudo."""
    host_key: pulumi.Output[str]
    """SSH host key ("ssh-ed25519 AAAA..."), read over a channel other than SSH, or "" if no key is available yet."""
    host_key_declared: bool = False
    """Whether the host key comes from the stack file. A change to such a key is intentional."""
    machine_id: pulumi.Output[str]
    """Id that changes if and only if a new machine with an empty disk replaces this one."""
    boots: pulumi.Output[int] | None = None
    """Number of times that the platform has started the machine. `up` waits for the node again after each start. None
    if a restarted machine returns to service without `up`, as in clouds."""
    data_disk: pulumi.Output[str] | None = None
    """Unique id of the head's data disk, or None if the host has none."""
    through_head: bool = False
    """Whether SSH uses the head as the jump host."""
    tunnel: pulumi.Output[Sequence[str]] | None = None
    """Command that opens a tunnel from a loopback port to the SSH port. The port number replaces "{port}". The command
    runs until it is interrupted, and is known only after the host and the tunnel service have been created."""
    wake: pulumi.Output[Sequence[str]] | None = None
    """Command that starts the head's machine after the cluster has stopped (yard/stack/sleep.py), or None if it never
    stops."""
    proxy: ProxyConnectionArgs | None = None
    """The jump host, or None for a direct connection."""
    proxy_jump: str | None = None
    """The jump host in the format of SSH's ProxyJump option: "user@address:port"."""


@dataclass(frozen=True, kw_only=True)
class PlatformArgs:
    """Arguments for a platform."""

    plan: ClusterPlan
    access: pulumi.Output[AccessKeys]
    """The public SSH keys in user-data. Some clouds also require a key for new machines."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Mapping from host name to machine digest. Resource hooks compare each digest with that of the last `up`."""

    def births(self, shared: pulumi.Input[SharedFiles]) -> Mapping[str, pulumi.Output[Birth]]:
        """Return a mapping from host name to user-data and identity. `shared` can be an output of the storage."""
        known = pulumi.Output.all(self.access, shared)

        def birth(host: HostPlan) -> pulumi.Output[Birth]:
            return known.apply(lambda facts: birth_of(self.plan, host, *facts))

        return {host.name: birth(host) for host in self.plan.hosts}


class Platform(pulumi.ComponentResource):
    """Component that creates a plan's machines. Subclasses set `hosts` and, if the default does not apply, `shared`."""

    hosts: Sequence[Host]
    """The hosts in the plan's order, which begins with the head."""
    shared: pulumi.Input[SharedFiles] = ON_HEAD
    """Location of the shared files."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        inputs: dict[str, Any] = {MACHINES: dict(args.machines)} if args.machines else {}
        plan = args.plan
        if plan.storage.kind == "head_nfs" and isinstance(plan.platform, CloudSpec):
            inputs[INPUT] = plan.storage.size_gib
            # The engine runs the hook before it registers the component, which is the parent of every machine and disk.
            # Therefore `up` fails before it changes a resource, even with --skip-preview.
            hook = pulumi.ResourceHook(
                "trainyard-shared-disk", refuse_smaller, pulumi.ResourceHookOptions(on_dry_run=True)
            )
            guard = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))
            opts = pulumi.ResourceOptions.merge(opts, guard)
        super().__init__(f"trainyard:index:{type(self).__name__}", name, inputs, opts)


def cloud_hosts(
    plan: ClusterPlan,
    machines: Mapping[str, tuple[pulumi.Output[str], pulumi.Output[str]]],
    *,
    public_ip: pulumi.Output[str] | None,
    tunnel: tuple[pulumi.Output[Sequence[str]], int] | None,
    data_disk: pulumi.Output[str] | None,
) -> list[Host]:
    """Return a cloud's hosts in the plan's order. SSH reaches the workers through the head.

    `machines` is a mapping from host name to machine id and host key. The other arguments describe the head: SSH uses
    its public address, the tunnel (command and loopback port), or else its private address.
    """
    head, *workers = (
        Host(
            plan=host,
            address=str(host.private_ip),
            port=22,
            user=ADMIN_USER,
            host_key=machines[host.name][1],
            machine_id=machines[host.name][0],
            through_head=host is not plan.head,
        )
        for host in plan.hosts
    )
    head = replace(head, data_disk=data_disk)
    if public_ip is not None:
        head = replace(head, address=public_ip)
    elif tunnel is not None:
        head = replace(head, address="127.0.0.1", tunnel=tunnel[0], port=tunnel[1])
    return [head, *workers]
