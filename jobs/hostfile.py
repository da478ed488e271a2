"""Host lists for launchers that want a file. Pure: names and GPUs are the stack's outputs."""

from __future__ import annotations

from enum import StrEnum

from jobs.facts import Cluster, Node


class HostfileFormat(StrEnum):
    """Who reads the list. DeepSpeed is strict: no comment, no blank line, no host twice, no localhost."""

    DEEPSPEED = "deepspeed"
    MPI = "mpi"
    IPS = "ips"


def hostfile(cluster: Cluster, kind: HostfileFormat) -> str:
    """Return the workers, one a line."""
    return "".join(_line(node, kind) + "\n" for node in cluster.nodes)


def _line(node: Node, kind: HostfileFormat) -> str:
    slots = max(1, node.gpus)
    match kind:
        case HostfileFormat.DEEPSPEED:
            return f"{node.name} slots={slots}"
        case HostfileFormat.MPI:
            # Open MPI would otherwise take its own idea of cores for the upper bound.
            return f"{node.name} slots={slots} max_slots={slots}"
        case HostfileFormat.IPS:
            return node.private_ip
