"""ClusterOutputs: what `pulumi stack output --json` promises to `yard` and to anyone's scripts. Contract 1."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from components.errors import ContractError
from components.host_key_format import HOST_KEY

CONTRACT = 1

# What is written into ssh's configuration matches in full: a line break or a leading hyphen would add an option.
_ADDRESS = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_USER = r"[a-z_][a-z0-9_-]{0,31}"


def _plain_address(text: str) -> str:
    return str(IPv4Address(text))


def _tunnel_words(words: tuple[str, ...]) -> tuple[str, ...]:
    if not any(words[: len(known)] == known for known in _TUNNELS) or sum(word.count("{port}") for word in words) != 1:
        raise ValueError("must be a command that opens a tunnel of Azure Bastion or Identity-Aware Proxy")
    return words


_TUNNELS = (("az", "network", "bastion", "tunnel"), ("gcloud", "compute", "start-iap-tunnel"))

Name = Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
Address = Annotated[str, Field(pattern=f"^{_ADDRESS}$")]
User = Annotated[str, Field(pattern=f"^{_USER}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
PrivateIp = Annotated[str, AfterValidator(_plain_address)]
HostKey = Annotated[str, Field(pattern=f"^(?:{HOST_KEY.pattern})$")]
ProxyJump = Annotated[str, Field(pattern=f"^(?:{_USER}@)?{_ADDRESS}(?::[0-9]{{1,5}})?$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9./_:=-]{0,512}(?:\{port\})?$")]
TunnelCommand = Annotated[tuple[Word, ...], AfterValidator(_tunnel_words)]


class _Out(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HeadOut(_Out):
    """The head node. `user` runs jobs, `admin_user` has sudo; both take the stack's ssh key.

    `tunnel` is a command that listens on the loopback port that replaces "{port}" and forwards to the head's SSH port.
    With it, `address` and `port` are those of `pulumi up`'s own tunnel, which nothing answers at after the `up`.
    """

    name: Name
    address: Address
    port: Port
    private_ip: PrivateIp
    user: User
    admin_user: User
    host_key: HostKey
    proxy_jump: ProxyJump | None = None
    tunnel: TunnelCommand | None = None


class NodeOut(_Out):
    """A worker. `address` and `port` are where ssh reaches it directly; None: through the head."""

    name: Name
    private_ip: PrivateIp
    group: Name
    gpus: int
    gpu_type: str | None
    fabric: str
    host_key: HostKey
    address: Address | None = None
    port: Port = 22


class TransportOut(_Out):
    """Files of a node that NCCL's transport needs, as catalog.Fabric has them."""

    library_path: str | None = None
    mounts: tuple[str, ...] = ()


class ClusterOutputs(_Out):
    """The whole contract. `env`, `thresholds`, `pair_thresholds` and `transport` are per node group.

    The thresholds are in GB/s of all-reduce bus bandwidth; None if no source publishes one. `thresholds` is for jobs on
    one node, `pair_thresholds` for jobs on two or more nodes. Outputs written before that field existed lack it.
    `transport` has no entry for a group whose fabric needs no files of the node.
    """

    contract: Literal[1] = 1
    name: Name
    provider: str
    scheduler: str
    head: HeadOut
    nodes: tuple[NodeOut, ...]
    home_path: str = "/home"
    shared_path: str = "/shared"
    state_dir: str = "/var/lib/trainyard"
    env: dict[str, dict[str, str]]
    transport: dict[str, TransportOut] = {}
    thresholds: dict[str, float | None]
    pair_thresholds: dict[str, float | None] = Field(default_factory=dict)
    usd_per_hour: float | None


def dumped(outputs: ClusterOutputs) -> dict[str, Any]:
    """Return the outputs as JSON values. Without a tunnel or transport files, their fields are left out: readers that
    are older than the fields refuse unknown ones.
    """
    found = outputs.model_dump(mode="json")
    if not outputs.transport:
        del found["transport"]
    if outputs.head.tunnel is None:
        del found["head"]["tunnel"]
    return found


def ssh_command(head: Mapping[str, Any], stack: str) -> str:
    """Return the command that logs in to the head as its admin.

    Without a tunnel it is ssh's own, for which the stack's `ssh_private_key` is in an agent.
    """
    if head.get("tunnel"):
        return f"yard ssh --admin --stack {stack}"
    jump = f"-J {head['proxy_jump']} " if head.get("proxy_jump") else ""
    return f"ssh {jump}-p {head['port']} {head['admin_user']}@{head['address']}"


def read_outputs(raw: Any) -> ClusterOutputs:
    """Parse the `cluster` output of a stack. Raises ContractError, with what to do, when it is not contract 1."""
    contract = raw.get("contract") if isinstance(raw, dict) else None
    if contract is None:
        raise ContractError("the stack has no `cluster` output; run `pulumi up` on it first")
    if contract != CONTRACT:
        raise ContractError(
            f"the stack speaks outputs contract {contract}, this yard contract {CONTRACT}; "
            "use the trainyard version that deployed the stack, or run `pulumi up` with this one"
        )
    try:
        return ClusterOutputs.model_validate(raw)
    except ValidationError as error:
        raise ContractError(f"the stack's `cluster` output is damaged ({error}); run `pulumi up` again") from error
