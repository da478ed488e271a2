"""Version 1 of the outputs contract: the format of a stack's `cluster` output.

The Pulumi program writes the output with `dumped`, and yard reads it with `read_outputs`. Both functions run the same
checks. The types are dataclasses, because importing pydantic takes longer than the rest of a yard command. A field that
can be null has a default, because Pulumi's engine omits null values when a program reads the output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from trainyard.errors import ContractError

LOCAL_WAKE = "local"
"""The first part of `head.wake` for a machine on the user's computer. The second part is the folder of the machines."""
_ED25519 = r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5[A-Za-z0-9+/]{48}"
"""An ed25519 key has 51 bytes (RFC 8709, section 4), so its base64 has 68 characters, 20 of which are constant."""
_OTHER = r"(?:ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) [A-Za-z0-9+/]{64,2048}={0,2}"

HOST_KEY = re.compile(f"{_ED25519}|{_OTHER}")
"""An SSH host key's type and base64 without a comment. Existing hosts can have keys of older types."""


class Invalid(ValueError):
    """A value that the contract forbids."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path} {rule}")


def read(kind: Any, value: Any, path: str = "") -> Any:
    """Convert a JSON value to the type `kind`. Raises Invalid for the first wrong value.

    Supported types: dataclasses, str, int, float, tuple[T, ...], Mapping[K, T], T | None and Annotated[T, check].
    """
    if is_dataclass(kind):
        return _dataclass(kind, value, path)
    if kind in _SCALARS:
        return _scalar(kind, value, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return None if value is None else read(arguments[0], value, path)
    if origin is Annotated:
        return arguments[1](read(arguments[0], value, path), path)
    if origin is tuple:
        _require(isinstance(value, list | tuple), path, "must be a list")
        return tuple(read(arguments[0], item, f"{path}.{index}") for index, item in enumerate(value))
    _require(isinstance(value, Mapping), path, "must be an object")
    return {read(arguments[0], key, path): read(arguments[1], item, f"{path}.{key}") for key, item in value.items()}


def _dataclass(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path or "cluster", "must be an object")
    types, prefix = _field_types(kind), f"{path}." if path else ""
    for unknown in sorted(value.keys() - types.keys()):
        raise Invalid(f"{prefix}{unknown}", "is not a field of the contract")
    values = {name: read(types[name], item, f"{prefix}{name}") for name, item in value.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise Invalid(path or "cluster", str(error).partition(") ")[2]) from error


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    types = get_type_hints(kind, include_extras=True)
    return {field.name: types[field.name] for field in fields(kind)}


_SCALARS = {str: "must be a string", int: "must be an integer", float: "must be a number"}


def _scalar(kind: Any, value: Any, path: str) -> Any:
    valid = isinstance(value, str if kind is str else int | float) and not isinstance(value, bool)
    # The engine writes integers as floats, such as 22.0.
    _require(valid and (kind is not int or value % 1 == 0), path, _SCALARS[kind])
    return kind(value)


def _matches(pattern: str) -> Callable[[str, str], str]:
    def check(value: str, path: str) -> str:
        _require(bool(re.fullmatch(pattern, value)), path, f"must match {pattern}, not {value[:100]!r}")
        return value

    return check


def _port(value: int, path: str) -> int:
    _require(0 < value < 2**16, path, f"must be an integer from 1 to 65535, not {value}")
    return value


def _tunnel(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    known = any(words[: len(program)] == program for program in _TUNNEL_PROGRAMS)
    one_port = sum(word.count("{port}") for word in words) == 1
    _require(
        known and one_port, path, "must be a command that opens a tunnel with Azure Bastion or Identity-Aware Proxy"
    )
    return words


def _wake(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    known = any(re.fullmatch(pattern, " ".join(words)) for pattern in _WAKE_COMMANDS)
    _require(known, path, "must be a command that starts a machine on Azure, on Google Cloud or on this computer")
    return words


def _require(valid: bool, path: str, rule: str) -> None:
    if not valid:
        raise Invalid(path, rule)


# yard writes these values to the SSH configuration, in which a line break or a leading hyphen would add an option.
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOGIN = r"[a-z_][a-z0-9_-]{0,31}"
_Word = Annotated[str, _matches(r"[A-Za-z0-9./_:=-]{0,512}(?:\{port\})?")]
_WAKE_COMMANDS = (
    r"az vm start --ids /subscriptions/[^ ]+",
    r"gcloud compute instances start [a-z0-9-]+ --zone=[a-z0-9-]+ --project=[a-z0-9.:-]+",
    rf"{LOCAL_WAKE} /[^ ]*",
)
_TUNNEL_PROGRAMS = (("az", "network", "bastion", "tunnel"), ("gcloud", "compute", "start-iap-tunnel"))

Name = Annotated[str, _matches(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")]
Address = Annotated[str, _matches(_HOST)]
User = Annotated[str, _matches(_LOGIN)]
Port = Annotated[int, _port]
PrivateIp = Annotated[str, _matches(rf"{_OCTET}(?:\.{_OCTET}){{3}}")]
HostKey = Annotated[str, _matches(HOST_KEY.pattern)]
ProxyJump = Annotated[str, _matches(f"(?:{_LOGIN}@)?{_HOST}(?::[0-9]{{1,5}})?")]
Tunnel = Annotated[tuple[_Word, ...], _tunnel]
Wake = Annotated[tuple[_Word, ...], _wake]
UserRole = Annotated[str, _matches("admin|user")]
PEOPLE = "people"
"""The folder in the shared path with a folder for each person, which contains the person's home and jobs."""


CONTRACT = 1


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head node. `user` runs jobs, and `admin_user` has sudo. The stack has a separate key for each user.

    `tunnel` is a command that forwards the loopback port "{port}" to the head's SSH port. If `tunnel` is set, `address`
    and `port` are valid only while `pulumi up` keeps its own tunnel open. `wake` is the command that starts the head's
    machine, if an idle cluster stops.
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
    wake: Wake | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A worker. `address` is its SSH address, or None if the head is the jump host."""

    name: Name
    private_ip: PrivateIp
    group: Name
    gpus: int
    gpu_type: str | None = None
    fabric: str
    host_key: HostKey
    address: Address | None = None
    port: Port = 22


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The files that NCCL's transport needs: a folder for LD_LIBRARY_PATH, and mounts for containers."""

    library_path: str | None = None
    mounts: tuple[str, ...] = ()


NO_TRANSPORT = Transport()


@dataclass(frozen=True, kw_only=True)
class Prices:
    """List prices in dollars per hour. `nodes` is the price of one machine by node group. `services` is the sum of the
    known prices of the shared storage, the gateway, boot disks, addresses and NAT, and `unpriced` lists those without a
    known price. A price is None if it is unknown. `spot` lists the groups whose price is a Spot price.
    """

    head: float | None = None
    nodes: Mapping[str, float | None] = field(default_factory=dict)
    services: float | None = None
    spot: tuple[Name, ...] = ()
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster. `env`, `transport`, `thresholds`, `pair_thresholds` and `spares` are mappings by node group.
    `prices` is None if the machines have no price.

    All hosts share `home_path` and `shared_path`. `transport` contains only groups whose fabric needs files on the
    node. The published minimum bus bandwidth of an all-reduce, in GB/s, is in `thresholds` for one node and in
    `pair_thresholds` for several nodes. `spares` is the number of nodes that are held back from jobs. If `repair` is
    `auto`, `yard heal --auto` repairs nodes. `users` is a mapping from the people's names to their roles, `admin` or
    `user`. `head.user` is one of them in a person's outputs file, and the job user in all others. If no `pulumi up` has
    made the cluster ready, `unready` states the reason, and `nodes` can be empty.
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
    usd_per_hour: float | None = None
    prices: Prices | None = None
    spares: Mapping[str, int] = field(default_factory=dict)
    repair: str = "ask"
    users: Mapping[User, UserRole] = field(default_factory=dict)
    unready: str | None = None

    def folder_of(self, user: str) -> str:
        """Return the folder of a user's jobs and environments: one for each person, and the shared path for others."""
        return f"{self.shared_path}/{PEOPLE}/{user}" if user in self.users else self.shared_path

    def jobs_of(self, user: str) -> str:
        """Return the folder that contains the run folders of a user's jobs."""
        return f"{self.folder_of(user)}/jobs"

    @property
    def jobs_path(self) -> str:
        """The folder that contains the run folders of this user's jobs."""
        return self.jobs_of(self.head.user)

    def way_to_start(self, stack: str) -> str:
        """Return how an operator starts a stopped machine of this stack.

        On Azure, `pulumi up` cannot start a deallocated machine, because azure-native has no property for the power
        state.
        """
        commands = {"azure": "`az vm start`", "hosts": "its power button or its management controller"}
        return commands.get(self.provider, f"`pulumi up -s {stack} --refresh`")

    @property
    def warning(self) -> str:
        """The reason why the cluster is not ready and the fix, or "" if the cluster is ready."""
        if self.unready is None:
            return ""
        return (
            f"cluster '{self.name}' has not become ready: {self.unready}. Fix: read the error of `pulumi up`, check "
            "the hosts with `yard doctor`, then run `pulumi up` again"
        )

    @property
    def addresses(self) -> dict[str, str]:
        """The hosts' private addresses by name, starting with the head."""
        return {self.head.name: self.head.private_ip, **{node.name: node.private_ip for node in self.nodes}}

    def firm_usd(self, group: str) -> float | None:
        """Return a node's list price in dollars per hour, or None if it is unknown or is a Spot price.

        Limits on cost use this price, because a recorded Spot price can be too low.
        """
        return None if self.prices is None or group in self.prices.spot else self.prices.nodes.get(group)

    def busbw_floor(self, group: str, nodes: int) -> float | None:
        """Return the published minimum bus bandwidth, in GB/s, of an all-reduce on `nodes` nodes, or None."""
        return (self.thresholds if nodes == 1 else self.pair_thresholds).get(group)


def dumped(cluster: Cluster) -> dict[str, Any]:
    """Return the outputs as JSON values. Raises ContractError if the contract forbids a value.

    Older versions of yard reject unknown fields. Therefore, `repair: ask` and an empty `tunnel`, `wake`, `transport`,
    `spares`, `users`, `prices`, `prices.spot`, `prices.unpriced` or `unready` are omitted.
    """
    found: dict[str, Any] = json.loads(json.dumps(asdict(read_outputs(asdict(cluster)))))
    for name in ("transport", "spares", "users", "prices", "unready"):
        if not found[name]:
            del found[name]
    for name in ("spot", "unpriced"):
        if cluster.prices is not None and not found["prices"][name]:
            del found["prices"][name]
    if cluster.repair == "ask":
        del found["repair"]
    for name in ("tunnel", "wake"):
        if found["head"][name] is None:
            del found["head"][name]
    return found


def ssh_command(head: Mapping[str, Any], stack: str) -> str:
    """Return the command that logs in to the head as the admin. `ssh` needs `admin_private_key` and its certificate in
    an SSH agent.
    """
    if head.get("tunnel"):
        return f"yard ssh --admin --stack {stack}"
    jump = f"-J {head['proxy_jump']} " if head.get("proxy_jump") else ""
    return f"ssh {jump}-p {head['port']} {head['admin_user']}@{head['address']}"


def read_outputs(raw: Any) -> Cluster:
    """Return a stack's `cluster` output. Raises ContractError for another version or a wrong value."""
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
    try:
        found: Cluster = read(Cluster, raw)
    except Invalid as error:
        raise ContractError(f"the stack's `cluster` output is damaged ({error}); run `pulumi up` again") from error
    return found
