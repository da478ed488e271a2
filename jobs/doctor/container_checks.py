"""Whether the nodes can start containers as the stack file asks, and have the NCCL plugin of their fabric."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.doctor.findings import Examined, Finding
from jobs.doctor.reports import HostReport
from jobs.facts import NO_TRANSPORT, Node
from jobs.placement import drives_gpus

_BY_DAEMON = frozenset({"gpudirect-tcpx", "gpudirect-tcpxo"})
"""Fabrics whose plugin needs a receive daemon on each node."""

_LOGS = "read /var/log/trainyard/44-containers.log and 45-transport.log there; "
_AGAIN = "`yard ssh {node} --admin -- sudo systemctl restart trainyard-bootstrap` runs its stages again"


def check_containers(examined: Examined) -> Iterator[Finding]:
    """Docker or enroot works where the stack file names it; the fabric's NCCL plugin and its daemon are there."""
    nodes = {node.name: node for node in examined.cluster.nodes}
    for report in examined.workers:
        node = nodes[report.name]
        transport = examined.cluster.transport.get(node.group, NO_TRANSPORT)
        plugins = {row[1] for row in report.of("containers") if row[0] == "plugin"}
        troubles = list(_docker(report, node)) if report.value("containers", "wanted") == "docker" else []
        if report.value("containers", "wanted") == "enroot" and report.value("containers", "enroot") != "yes":
            troubles.append(("it has no enroot", "its image has none, and no stage installs it"))
        if transport.library_path is not None and transport.library_path not in plugins:
            what = f"it has no NCCL plugin in {transport.library_path}, its fabric is {node.fabric}"
            troubles.append((what, "the stage 45-transport failed or its files were removed; NCCL would use plain TCP"))
        if node.fabric in _BY_DAEMON and (state := report.value("containers", "receiver")) != "running":
            what = f"its receive daemon is {state or 'absent'}"
            troubles.append((what, "`docker logs receive-datapath-manager` there has its last words"))
        for what, cause in troubles:
            yield Finding(
                probe="containers",
                node=report.name,
                what=what,
                cause=cause,
                fix=_LOGS + _AGAIN.format(node=node.name),
            )


def _docker(report: HostReport, node: Node) -> Iterator[tuple[str, str]]:
    if (state := report.value("containers", "docker")) != "active":
        yield f"docker is {state or 'absent'}", "it is not installed, or its service has stopped"
    if report.value("containers", "member") != "yes":
        yield "the job user is not in group docker", "the stack file asked for docker after this node was made"
    if drives_gpus(node) and report.value("containers", "toolkit") != "yes":
        yield "it has no NVIDIA container toolkit", "docker gives its containers no GPU without it"
