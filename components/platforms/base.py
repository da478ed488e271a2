"""The interface of a platform: its arguments and its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pulumi

from components.node.parameters import ON_HEAD, SharedFiles
from components.node.user_data import ADMIN_USER, AccessKeys, Birth, birth_of
from components.plan.plan import ClusterPlan, HostPlan
from components.spec.model import CloudSpec
from trainyard.errors import PlatformError

if TYPE_CHECKING:
    from pulumi_command.remote import ProxyConnectionArgs

MACHINES = "machines"
"""Name of the component input that maps host names to machine digests."""
_WAIT_SECONDS = 900
"""Maximum wait. A machine with eight GPUs can need half of this time to start."""
_LONGEST_FIRST_BOOT = timedelta(minutes=20)
"""If an older machine has not published its key, it is stopped or broken."""


def host_key_wait(created: str | None) -> int:
    """Return the maximum wait in seconds for the host key of a machine that was created at this time (RFC 3339).

    The wait begins now. In a preview, for an older machine or an unknown creation time, the wait is 0, and the key is
    read once.
    """
    if pulumi.runtime.is_dry_run() or not created:
        return 0
    return _WAIT_SECONDS if datetime.now(UTC) - datetime.fromisoformat(created) < _LONGEST_FIRST_BOOT else 0


def moved_from(opts: pulumi.ResourceOptions | None) -> Sequence[pulumi.Alias] | None:
    """Return the aliases of a resource that was a child of the component's parent before the component existed.

    `opts` are the component's options. With these aliases, `up` finds the resource in the state of an older version, so
    it does not replace the resource. Returns None for a component without a parent, which no older version created.
    """
    if opts is None or opts.parent is None:
        return None
    return [pulumi.Alias(parent=opts.parent)]


INPUT = "sharedDiskGib"
"""Input to the platform's component. Resource hooks can read its value from the last `up`."""


def shared_disk_inputs(plan: ClusterPlan) -> dict[str, pulumi.Input[int]]:
    """Return the input with the size of the head's data disk, or {} if the head has no data disk."""
    has_disk = plan.storage.kind == "head_nfs" and isinstance(plan.platform, CloudSpec)
    return {INPUT: plan.storage.size_gib} if has_disk else {}


def refuse_to_shrink() -> pulumi.ResourceOptions:
    """Return resource options that let a platform's component reject a smaller disk, in previews and in `up`.

    The engine runs the hook before it registers the component, which is the parent of every machine and disk.
    Therefore `up` fails before it changes any resource, even with --skip-preview.
    """
    hook = pulumi.ResourceHook("trainyard-shared-disk", refuse_smaller, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))


def refuse_smaller(args: pulumi.ResourceHookArgs) -> None:
    """Raise PlatformError if the new inputs have a smaller disk than the old inputs."""
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
    """The address that SSH uses, which can differ from the private address."""
    port: pulumi.Input[int]
    user: str
    """The admin user, with sudo."""
    host_key: pulumi.Output[str]
    """SSH host key ("ssh-ed25519 AAAA..."), read over a channel other than SSH, or "" if no key is available."""
    host_key_declared: bool = False
    """Whether the stack file sets the host key. A change to such a key is intentional."""
    machine_id: pulumi.Output[str]
    """Id that changes if and only if a new machine with an empty disk replaces this one."""
    boots: pulumi.Output[int] | None = None
    """Number of times that the platform has started the machine. `up` waits for the node again if the number changes.
    None in clouds, where a stopped machine returns to service without `up` after it is started."""
    data_disk: pulumi.Output[str] | None = None
    """Unique id of the head's data disk, or None if the host has no data disk."""
    through_head: bool = False
    """Whether SSH uses the head node as the jump host."""
    tunnel: pulumi.Output[Sequence[str]] | None = None
    """Command that opens a tunnel to the SSH port. The command listens on the loopback port that replaces "{port}", and
    runs until it is interrupted. The command is known only after the host and the tunnel service have been created."""
    proxy: ProxyConnectionArgs | None = None
    """The jump host, or None for a direct connection."""
    proxy_jump: str | None = None
    """The jump host in the format of SSH's ProxyJump option: "user@address:port"."""


@dataclass(frozen=True, kw_only=True)
class PlatformArgs:
    """Arguments for a platform."""

    plan: ClusterPlan
    admin_key: pulumi.Output[str]
    """The admin's public SSH key. It is in user-data, and some clouds require it to create a machine."""
    cluster_key: pulumi.Output[str]
    """Public key that the head uses to connect to workers."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Digests of the machines' properties by host name. Resource hooks can read the digests from the last `up`."""

    def births(self, shared: pulumi.Input[SharedFiles]) -> Mapping[str, pulumi.Output[Birth]]:
        """Return each host's user-data and identity, by name.

        On some platforms, the location of the shared files is an output of the shared storage.
        """
        known = pulumi.Output.all(self.admin_key, self.cluster_key, shared)

        def birth(host: HostPlan) -> pulumi.Output[Birth]:
            return known.apply(lambda facts: birth_of(self.plan, host, AccessKeys(facts[0], facts[1]), facts[2]))

        return {host.name: birth(host) for host in self.plan.hosts}


class Platform(pulumi.ComponentResource):
    """Component that creates the machines of a plan. Subclasses set `hosts`, and `shared` if the default is wrong."""

    hosts: Sequence[Host]
    """The hosts in the order of the plan, which begins with the head."""
    shared: pulumi.Input[SharedFiles] = ON_HEAD
    """Location of the shared files."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        disk = shared_disk_inputs(args.plan)
        guarded = pulumi.ResourceOptions.merge(opts, refuse_to_shrink() if disk else None)
        inputs = {**disk, **({MACHINES: dict(args.machines)} if args.machines else {})}
        super().__init__(f"trainyard:index:{type(self).__name__}", name, inputs, guarded)


def cloud_hosts(
    plan: ClusterPlan,
    machines: Mapping[str, tuple[pulumi.Output[str], pulumi.Output[str]]],
    *,
    public_ip: pulumi.Output[str] | None,
    tunnel: tuple[pulumi.Output[Sequence[str]], int] | None,
    data_disk: pulumi.Output[str] | None,
) -> list[Host]:
    """Return a cloud's hosts in the order of the plan. SSH reaches the workers through the head.

    `machines` contains the id and the host key of each machine. The other arguments belong to the head. SSH uses its
    public address, the tunnel (a command and its loopback port), or otherwise its private address.
    """
    hosts = []
    for host in plan.hosts:
        is_head, (machine_id, host_key) = host is plan.head, machines[host.name]
        address: pulumi.Input[str] = str(host.private_ip)
        if is_head and public_ip is not None:
            address = public_ip
        elif is_head and tunnel is not None:
            address = "127.0.0.1"
        hosts.append(
            Host(
                plan=host,
                address=address,
                port=tunnel[1] if is_head and tunnel is not None else 22,
                user=ADMIN_USER,
                host_key=host_key,
                machine_id=machine_id,
                data_disk=data_disk if is_head else None,
                through_head=not is_head,
                tunnel=tunnel[0] if is_head and tunnel is not None else None,
            )
        )
    return hosts
