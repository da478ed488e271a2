"""The interface of a platform: its arguments and its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pulumi

from components.node.parameters import ON_HEAD, SharedFiles
from components.node.user_data import AccessKeys, Birth, birth_of
from components.plan.plan import ClusterPlan, HostPlan, Role
from components.platforms.shared_disk import refuse_to_shrink, shared_disk_inputs

if TYPE_CHECKING:
    from pulumi_command.remote import ProxyConnectionArgs


MACHINES = "machines"
"""Name of the component input that maps host names to machine digests."""


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
        inputs = {
            **disk,
            **({MACHINES: dict(args.machines)} if args.machines else {}),
        }
        super().__init__(f"trainyard:index:{type(self).__name__}", name, inputs, guarded)


def ssh_address(
    plan: ClusterPlan, host: HostPlan, public: pulumi.Input[str] | None, tunnel_port: int
) -> tuple[pulumi.Input[str], int]:
    """Return the address and the port for SSH connections to a host in a cloud.

    `public` is the head's public address, and `tunnel_port` is the loopback port of the tunnel to the head.
    """
    if host.role is Role.HEAD and public is not None:
        return public, 22
    if host.role is Role.HEAD and plan.access.via == "bastion":
        return "127.0.0.1", tunnel_port
    return str(host.private_ip), 22
