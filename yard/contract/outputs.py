"""Version 1 of the outputs contract, which is the format of a stack's `cluster` output.

The Pulumi program writes the output with `dumped`, and yard reads it with `read_outputs`. Both functions run the same
checks. The types are dataclasses, because importing pydantic takes longer than the rest of a yard command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from yard.contract.checks import Address, HostKey, Invalid, Name, Port, PrivateIp, ProxyJump, Tunnel, User, read
from yard.contract.errors import ContractError

CONTRACT = 1

_Part = TypeVar("_Part", "Head", "Cluster")


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head node. `user` runs jobs, and `admin_user` has sudo. The stack has a separate key for each user.

    `tunnel` is a command that forwards a loopback port to the head's SSH port. "{port}" in the command is replaced with
    the loopback port. With a tunnel, `address` and `port` belong to a tunnel that is open only while `pulumi up` runs.
    """

    name: Name
    address: Address
    port: Port
    private_ip: PrivateIp
    user: User
    admin_user: User
    host_key: HostKey
    proxy_jump: ProxyJump | None = None
    tunnel: Tunnel | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A worker. `address` is the address for SSH, or None if the head node is the jump host."""

    name: Name
    private_ip: PrivateIp
    group: Name
    gpus: int
    gpu_type: str | None
    fabric: str
    host_key: HostKey
    address: Address | None = None
    port: Port = 22


@dataclass(frozen=True, kw_only=True)
class Transport:
    """Files on the node that NCCL's transport needs: a folder for LD_LIBRARY_PATH, and mounts for containers."""

    library_path: str | None = None
    mounts: tuple[str, ...] = ()


NO_TRANSPORT = Transport()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster. The keys of `env`, `thresholds`, `pair_thresholds` and `transport` are names of node groups.

    `home_path` is the folder that the workers mount from the head in addition to `shared_path`.
    `thresholds` is the minimum bus bandwidth of an all-reduce on one node in GB/s, or None if no source publishes a
    value. `pair_thresholds` is the minimum for two or more nodes. `transport` contains only groups whose fabric needs
    files on the node. `spares` is the number of nodes that are held back from jobs, for groups with spares. `unready`
    is None, or the reason why no `pulumi up` has made the cluster ready. In this case, `nodes` is empty if the machines
    or their SSH host keys are not known.
    """

    contract: int = CONTRACT
    name: Name
    provider: str
    scheduler: str
    head: Head
    nodes: tuple[Node, ...]
    home_path: str = "/home"
    shared_path: str = "/shared"
    state_dir: str = "/var/lib/trainyard"
    env: Mapping[str, Mapping[str, str]]
    transport: Mapping[str, Transport] = field(default_factory=dict)
    thresholds: Mapping[str, float | None]
    pair_thresholds: Mapping[str, float | None] = field(default_factory=dict)
    usd_per_hour: float | None
    spares: Mapping[str, int] = field(default_factory=dict)
    unready: str | None = None

    @property
    def warning(self) -> str:
        """The reason why the cluster is not ready, and the fix, or "" if an `up` has made the cluster ready."""
        if self.unready is None:
            return ""
        return (
            f"cluster '{self.name}' has not become ready: {self.unready}. Fix: read the error of `pulumi up`, check "
            "the hosts with `yard doctor`, then run `pulumi up` again"
        )

    @property
    def addresses(self) -> dict[str, str]:
        """Private addresses by host name. The head is first."""
        return {self.head.name: self.head.private_ip, **{node.name: node.private_ip for node in self.nodes}}

    def busbw_floor(self, group: str, nodes: int) -> float | None:
        """Return the minimum bus bandwidth in GB/s of an all-reduce on `nodes` nodes, or None if unpublished."""
        return (self.thresholds if nodes == 1 else self.pair_thresholds).get(group)


def dumped(cluster: Cluster) -> dict[str, Any]:
    """Return the outputs as JSON values. Raises ContractError for a value that the contract forbids.

    The fields `tunnel`, `transport`, `spares` and `unready` are omitted if they are empty, because older versions of
    yard reject unknown fields.
    """
    found: dict[str, Any] = json.loads(json.dumps(asdict(read_outputs(asdict(cluster)))))
    for name in ("transport", "spares", "unready"):
        if not found[name]:
            del found[name]
    if cluster.head.tunnel is None:
        del found["head"]["tunnel"]
    return found


def ssh_command(head: Mapping[str, Any], stack: str) -> str:
    """Return the command that logs in to the head as the admin.

    Without a tunnel, the command is `ssh`, which needs the stack's `admin_private_key` in an SSH agent.
    """
    if head.get("tunnel"):
        return f"yard ssh --admin --stack {stack}"
    jump = f"-J {head['proxy_jump']} " if head.get("proxy_jump") else ""
    return f"ssh {jump}-p {head['port']} {head['admin_user']}@{head['address']}"


def read_outputs(raw: Any) -> Cluster:
    """Return the `cluster` output of a stack. Raises ContractError if the output has a different version or a wrong
    value.
    """
    contract = raw.get("contract") if isinstance(raw, dict) else None
    if contract is None:
        raise ContractError(
            "there is no `cluster` output, because no `pulumi up` has read the head's SSH host key. Fix: wait until "
            "`pulumi up` has completed, or run it and correct the problem that it reports"
        )
    if contract != CONTRACT:
        raise ContractError(
            f"the stack uses outputs contract {contract}, but this yard reads contract {CONTRACT}; "
            "use the trainyard version that deployed the stack, or run `pulumi up` with this version"
        )
    return _checked(Cluster, raw)


def read_head(raw: Any) -> Head:
    """Return the head in a `cluster` output. Raises ContractError."""
    return _checked(Head, raw)


def _checked(kind: type[_Part], raw: Any) -> _Part:
    try:
        found: _Part = read(kind, raw)
    except Invalid as error:
        raise ContractError(f"the stack's `cluster` output is damaged ({error}); run `pulumi up` again") from error
    return found
