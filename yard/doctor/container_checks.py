"""Checks for container runtimes and for the NCCL plugin for the node's fabric."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.outputs import NO_TRANSPORT
from yard.doctor.findings import Examined, HostProblem, problem
from yard.doctor.reports import HostReport
from yard.job.placement import drives_gpus

_DAEMON_FABRICS = frozenset({"gpudirect-tcpx", "gpudirect-tcpxo"})
"""Fabrics whose NCCL plugin needs a receive daemon on each node."""


def check_containers(examined: Examined) -> Iterator[HostProblem]:
    """The container runtime from the stack file works, the fabric's NCCL plugin is installed and its daemon runs."""
    for report in examined.workers:
        node = examined.nodes[report.name]
        runtime = report.value("containers", "wanted")
        if runtime == "enroot" and report.value("containers", "enroot") != "yes":
            yield problem(report.name, "enroot")
        if runtime == "docker":
            yield from _docker_problems(report, real_gpus=drives_gpus(node))
        library = examined.cluster.transport.get(node.group, NO_TRANSPORT).library_path
        if library is not None and ("plugin", library) not in report.of("containers"):
            yield problem(report.name, "plugin", fabric=node.fabric, folder=library)
        receiver = report.value("containers", "receiver") or "absent"
        if node.fabric in _DAEMON_FABRICS and receiver != "running":
            yield problem(report.name, "receiver", state=receiver)


def _docker_problems(report: HostReport, *, real_gpus: bool) -> Iterator[HostProblem]:
    state = report.value("containers", "docker") or "absent"
    if state != "active":
        yield problem(report.name, "docker", state=state)
    if report.value("containers", "member") != "yes":
        yield problem(report.name, "docker-group")
    if real_gpus and report.value("containers", "toolkit") != "yes":
        yield problem(report.name, "toolkit")
