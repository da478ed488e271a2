"""ClusterOutputs: what `pulumi stack output --json` promises to `yard` and to anyone's scripts. Contract 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components.errors import ContractError

CONTRACT = 1


class _Out(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HeadOut(_Out):
    """The head node. `user` runs jobs, `admin_user` has sudo; both take the stack's ssh key."""

    name: str
    address: str
    port: int
    private_ip: str
    user: str
    admin_user: str
    host_key: str
    proxy_jump: str | None = None


class NodeOut(_Out):
    """A worker. `address` and `port` are where ssh reaches it directly; None: through the head."""

    name: str
    private_ip: str
    group: str
    gpus: int
    gpu_type: str | None
    fabric: str
    host_key: str
    address: str | None = None
    port: int = 22


class ClusterOutputs(_Out):
    """The whole contract. `env` and `thresholds` are per node group; `thresholds` in GB/s of all-reduce busbw."""

    contract: Literal[1] = 1
    name: str
    provider: str
    scheduler: str
    head: HeadOut
    nodes: tuple[NodeOut, ...]
    home_path: str = "/home"
    shared_path: str = "/shared"
    state_dir: str = "/var/lib/trainyard"
    env: dict[str, dict[str, str]]
    thresholds: dict[str, float | None]
    usd_per_hour: float | None


def ssh_command(head: Mapping[str, Any]) -> str:
    """Return the command that logs in to the head as its admin, with the stack's `ssh_private_key` in an agent."""
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
