"""The contract between the neutral code and whatever creates machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pulumi

from components.cloud_init import SharedFiles
from components.plan import ClusterPlan, HostPlan
from components.platforms.shared_disk import refuse_to_shrink, shared_disk_inputs
from components.spec import ClusterSpec, PlatformSpec

if TYPE_CHECKING:
    from pulumi_command.remote import ProxyConnectionArgs


Render = Callable[[HostPlan], str]
"""Returns a host's user-data."""


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """How the machine that runs Pulumi reaches a head without a public address."""

    program: str
    """The cloud's command line, which opens the tunnel."""
    port: int
    """The loopback port at which the head is reached while a deployment runs."""
    option: str
    """Where the stack file sets the port."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine that exists: all that the neutral code ever knows about it."""

    plan: HostPlan
    address: pulumi.Input[str]
    """Where ssh reaches it from here (not necessarily the private address)."""
    port: pulumi.Input[int]
    user: str
    """The admin user, with sudo."""
    host_key: pulumi.Output[str]
    """Its ssh host key ("ssh-ed25519 AAAA..."), learned over a channel other than ssh; "" if none is available now."""
    host_key_declared: bool = False
    """Whether the stack file states the key, so that a changed one was changed on purpose."""
    machine_id: pulumi.Output[str]
    """Changes if and only if the machine is a new one with an empty disk."""
    boots: pulumi.Output[int] | None = None
    """How often the platform itself has started it: another start is waited for again. None where nobody counts, as on
    clouds: a machine that was stopped and started there returns to service by itself, and no `up` waits for it."""
    through_head: bool = False
    """Whether ssh reaches `address` from the head only."""
    tunnel: pulumi.Output[Sequence[str]] | None = None
    """The command that opens a tunnel to its SSH port, once the host and the tunnel's service exist. It listens on the
    loopback port that replaces "{port}", and runs until it is interrupted."""
    proxy: ProxyConnectionArgs | None = None
    """The machine between here and `address`; None: there is none."""
    proxy_jump: str | None = None
    """The same as ssh takes it: "user@address:port"."""


@dataclass(frozen=True, kw_only=True)
class PlatformArgs:
    """What every platform gets. `user_data` gives what renders one host's cloud-config, once the public keys are known.

    Its argument says where the shared files are, which a platform may learn only when it has made them.
    """

    spec: PlatformSpec
    cluster: ClusterSpec
    plan: ClusterPlan
    user_data: Callable[[pulumi.Input[SharedFiles]], pulumi.Output[Render]]
    admin_key: pulumi.Output[str]
    """Public half of the admin's ssh key, for clouds that make no machine without one. User-data has it anyway."""
    cluster_key: pulumi.Output[str]
    """Public half of the head's key for workers, for machines that no user-data reaches."""


class Platform(pulumi.ComponentResource):
    """Makes the machines of a plan. A subclass gives `hosts` (head first, in the plan's order)."""

    hosts: Iterable[Host]
    """One per planned host, in the plan's order; to be gone through once. Each is declared when it is asked for, where
    there may be hundreds."""

    user_data_limit: ClassVar[int]
    """Bytes of user-data that the platform accepts, counted as `wire_user_data` gives it."""

    largest_disk_gib: ClassVar[int | None] = None
    """The largest disk that the head may share; None where the platform's own rules say more."""

    shared_disk: ClassVar[bool] = False
    """Whether the head node shares a cloud disk of its own, which cannot shrink."""
    billed: ClassVar[Mapping[str, str]] = {}
    """Pulumi type -> plain name of each kind of resource that costs money by the hour while it exists."""
    storage_types: ClassVar[frozenset[str]] = frozenset()
    """Those types of `billed` that are the shared storage."""
    gateway_types: ClassVar[frozenset[str]] = frozenset()
    """Those types of `billed` that are the gateway of `access.via: bastion`."""

    @staticmethod
    def wire_user_data(text: str) -> bytes:
        """Return what a machine is given of rendered user-data: the text, unless the platform's limit is narrow."""
        return text.encode()

    @staticmethod
    def tunnel(cluster: ClusterSpec) -> Tunnel | None:
        """Return the tunnel that the cluster's head is reached through, or None if it is reached without one."""
        return None

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        inputs = shared_disk_inputs(args.cluster) if self.shared_disk else {}
        guarded = pulumi.ResourceOptions.merge(opts, refuse_to_shrink() if inputs else None)
        super().__init__(f"trainyard:index:{type(self).__name__}", name, inputs, guarded)
