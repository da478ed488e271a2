"""What yard knows of a cluster: the outputs contract as plain dataclasses.

components/outputs.py checks a stack's outputs whenever they are read from pulumi; what was checked and kept is read
back into these, since a command should not wait for pydantic to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head node. `user` runs jobs, `admin_user` has sudo. `tunnel`: the command that opens one to it."""

    name: str
    address: str
    port: int
    private_ip: str
    user: str
    admin_user: str
    host_key: str
    proxy_jump: str | None
    tunnel: Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A worker. `address` None: ssh reaches it through the head."""

    name: str
    private_ip: str
    group: str
    gpus: int
    gpu_type: str | None
    fabric: str
    host_key: str
    address: str | None
    port: int


@dataclass(frozen=True, kw_only=True)
class Transport:
    """Files of a node that NCCL's transport needs: a folder for LD_LIBRARY_PATH, and paths for containers (':ro')."""

    library_path: str | None
    mounts: tuple[str, ...]


NO_TRANSPORT = Transport(library_path=None, mounts=())


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster. `env`, `transport`, `thresholds` and `pair_thresholds` are per node group.

    The thresholds are in GB/s of all-reduce bus bandwidth.
    """

    name: str
    scheduler: str
    head: Head
    nodes: tuple[Node, ...]
    home_path: str
    shared_path: str
    env: Mapping[str, Mapping[str, str]]
    transport: Mapping[str, Transport]
    thresholds: Mapping[str, float | None]
    pair_thresholds: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[str, str]:
        """Every host's private address by name, head first."""
        return {self.head.name: self.head.private_ip, **{node.name: node.private_ip for node in self.nodes}}

    def busbw_floor(self, group: str, nodes: int) -> float | None:
        """Return the least bus bandwidth in GB/s of an all-reduce over that many nodes; None if none is published."""
        return (self.thresholds if nodes == 1 else self.pair_thresholds).get(group)


def cluster_of(outputs: Mapping[str, Any]) -> Cluster:
    """Return the cluster of outputs that components.outputs.read_outputs has accepted, dumped as JSON."""
    # Kept outputs of an older yard have no `transport`.
    transport = {
        group: Transport(library_path=files["library_path"], mounts=tuple(files["mounts"]))
        for group, files in outputs.get("transport", {}).items()
    }
    made = {
        "head": Head(**_known(Head, outputs["head"])),
        "nodes": tuple(Node(**_known(Node, node)) for node in outputs["nodes"]),
        "transport": transport,
    }
    return Cluster(**_known(Cluster, {**outputs, **made}))


def _known(kind: type[Head | Node | Cluster], values: Mapping[str, Any]) -> dict[str, Any]:
    # Files kept by an older yard lack the fields that have defaults.
    return {item.name: values[item.name] for item in fields(kind) if item.name in values}
