"""The cluster's hosts: what Slurm says of each beside what the stack's outputs promise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jobs.facts import Cluster
from jobs.remote import Remote
from jobs.schedulers import scheduler_of

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """One host. `state` is Slurm's; the head, which runs no jobs, has 'head'."""

    name: str
    group: str
    state: str
    reason: str
    private_ip: str
    gpus: int
    gpu_type: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the node as `--json` prints it."""
        return asdict(self)


def join(cluster: Cluster, states: dict[str, tuple[str, str]]) -> list[NodeState]:
    """Return every host of the outputs, head first; a worker that Slurm does not know is 'unknown'."""
    head = cluster.head
    first = NodeState(
        name=head.name, group="", state="head", reason="", private_ip=head.private_ip, gpus=0, gpu_type=None
    )
    workers = []
    for node in cluster.nodes:
        state, reason = states.get(node.name, (UNKNOWN, "Slurm does not know this node; run `pulumi up`"))
        workers.append(
            NodeState(
                name=node.name,
                group=node.group,
                state=state,
                reason=reason,
                private_ip=node.private_ip,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
            )
        )
    return [first, *workers]


def read_nodes(remote: Remote) -> list[NodeState]:
    """Ask the scheduler and join it with the outputs."""
    return join(remote.stack.cluster, scheduler_of(remote.stack.cluster).nodes(remote))
