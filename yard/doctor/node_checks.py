"""Checks for a single host: bootstrap, services, mounts, clock, shared memory, software, Slurm state, memlock."""

from __future__ import annotations

import json
from collections.abc import Iterator

from trainyard.faults import fault, is_in_service
from yard.doctor.findings import Examined, HostProblem, problem, rdma_layer, unequal_versions

_CLOCK_OFFSET_SECONDS = 0.5
_CLOCK_DIFFERENCE_SECONDS = 5
"""Allowed difference in seconds. Hosts read their clocks at almost the same time, but a busy host can be late."""
_UNREGISTERED = "slurmd has not registered with slurmctld"
_SHM_SHARE = 4
"""Shared memory must be at least 1/4 of the memory. The default is 1/2 on Linux, and 64 MiB in a Docker container."""


def check_status(examined: Examined) -> Iterator[HostProblem]:
    """The bootstrap has finished since the last boot."""
    for report in examined.answered:
        try:
            status = json.loads(report.value("status", "json") or "{}")
        except ValueError:
            status = {}
        state, stage = status.get("state", "unknown"), status.get("stage", "")
        if status.get("boot_id") != report.value("status", "boot_id"):
            state, stage = "not started since the last boot", ""
        if state != "ready":
            shown = f"{state}, stage {stage}" if stage else state
            command = status.get("command") or status.get("reason") or "a stage has not finished"
            yield problem(report.name, "bootstrap", state=shown, command=command, log=stage or "*")


def check_services(examined: Examined) -> Iterator[HostProblem]:
    """All services for the host's role are active."""
    for report in examined.answered:
        for unit, state in report.of("services"):
            if state != "active":
                yield problem(report.name, "service", unit=unit, state=state)


def check_mounts(examined: Examined) -> Iterator[HostProblem]:
    """Workers mount the home folder and the shared path with the NFS version of their storage and the option `hard`."""
    for report in examined.workers:
        rows = {row[0]: row[1:] for row in report.of("mounts")}
        version, server = rows.get("expected", ("", examined.cluster.head.name))
        for path in (examined.cluster.home_path, examined.cluster.shared_path):
            kind, options = rows.get(path, ("", ""))
            # Version 3 has the type nfs, and the versions 4.0 to 4.2 have the type nfs4 (nfs(5), read 2026-11-24).
            if kind != ("nfs" if version == "3" else "nfs4"):
                yield problem(report.name, "mount-missing", path=path, server=server)
            elif not {"hard", f"vers={version}"} <= set(options.split(",")):
                yield problem(report.name, "mount-options", path=path, options=options, version=version, server=server)


def check_clock(examined: Examined) -> Iterator[HostProblem]:
    """All clocks are synchronized by chrony or systemd-timesyncd, and agree with the head's clock."""
    head_now = _seconds(examined.head.value("clock", "now")) if examined.head else None
    for report in examined.answered:
        row = next((row for row in report.of("clock") if row[0] == "chrony"), ("chrony", "", ""))
        offset, leap = _seconds(row[1]), row[2]
        if offset is None and report.value("clock", "synchronised") == "yes":
            pass  # systemd-timesyncd, on an existing host
        elif offset is None or leap in {"", "Not synchronised"}:
            yield problem(report.name, "clock-unsynchronized")
        elif abs(offset) > _CLOCK_OFFSET_SECONDS:
            yield problem(report.name, "clock-offset", seconds=offset)
        now = _seconds(report.value("clock", "now"))
        if head_now is not None and now is not None and abs(now - head_now) > _CLOCK_DIFFERENCE_SECONDS:
            yield problem(report.name, "clock-head", seconds=now - head_now)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_shm(examined: Examined) -> Iterator[HostProblem]:
    """Shared memory is large enough for data loaders and NCCL."""
    for report in examined.workers:
        size, memory = (int(kib) for kib in report.of("shm")[0])
        if size * _SHM_SHARE < memory:
            yield problem(report.name, "shm", size=size // 1024, memory=memory // 1024)


def check_software(examined: Examined) -> Iterator[HostProblem]:
    """All workers have the same versions of Python, torch and NCCL, and all hosts have the same version of Slurm."""
    hosts = {software: examined.workers for software in ("python", "torch", "nccl")}
    if examined.has_slurm:
        hosts["slurm"] = examined.answered
    for software, reports in hosts.items():
        versions = {report.name: report.value("software", software) or "absent" for report in reports}
        yield from unequal_versions(software, versions)


def check_queue(examined: Examined) -> Iterator[HostProblem]:
    """Slurm can schedule jobs on every worker."""
    if examined.head is None:
        return
    rows = {name: (state, reason) for name, state, reason in examined.head.of("queue")}
    for name in examined.nodes:
        state, reason = rows.get(name, ("unknown to Slurm", "none"))
        if not is_in_service(state):
            cause = _UNREGISTERED if reason == "none" else reason
            yield problem(name, "queue", state=state, reason=cause)


def is_slurms_own(cause: str) -> bool:
    """Return whether a node's state in Slurm is a consequence of a fault, instead of a decision of a person."""
    return cause == _UNREGISTERED or fault(cause) is not None


def check_memlock(examined: Examined) -> Iterator[HostProblem]:
    """Ranks can lock an unlimited amount of memory, as RDMA requires for its buffers. Without Slurm, the limit for SSH
    logins applies to ranks, and is a problem only on RDMA fabrics.
    """
    text = "memlock" if examined.has_slurm else "memlock-login"
    for name, limit in (row for report in examined.answered for row in report.of("memlock")):
        if limit != "unlimited" and (examined.has_slurm or rdma_layer(examined.nodes[name].fabric)):
            yield problem(name, text, limit=limit)
