"""Host files for launchers, rendered from the stack's outputs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.outputs import Cluster


class HostfileFormat(StrEnum):
    """Format of a host file. DeepSpeed rejects comments, blank lines, duplicate hosts and localhost."""

    DEEPSPEED = "deepspeed"
    MPI = "mpi"
    IPS = "ips"


_LINES = {
    HostfileFormat.DEEPSPEED: "{name} slots={slots}\n",
    # Without max_slots, Open MPI starts at most one rank per detected core.
    HostfileFormat.MPI: "{name} slots={slots} max_slots={slots}\n",
    HostfileFormat.IPS: "{ip}\n",
}


def hostfile(cluster: Cluster, kind: HostfileFormat) -> str:
    """Return the host file, with one worker per line."""
    return "".join(
        _LINES[kind].format(name=node.name, slots=max(1, node.gpus), ip=node.private_ip) for node in cluster.nodes
    )
