"""Checks for a single host: bootstrap, health, services, mounts, clock, memory, software, Slurm, interfaces, NCCL
settings and containers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from trainyard.faults import fault, is_in_service
from trainyard.outputs import NO_TRANSPORT
from yard.doctor.findings import Examined, HostProblem, HostReport, problem, rdma_layer, unequal_versions
from yard.job.placement import drives_gpus
from yard.run.queue import NO_REASON, NO_RESPONSE, explain_node, parse_authors

_CLOCK_DIFFERENCE_SECONDS = 5
"""Hosts read their clocks at almost the same time, but a busy host can be late."""
_SHM_SHARE = 4
"""Shared memory must be at least a quarter of the host's memory. The default is half in Linux and 64 MiB in Docker."""


def check_status(examined: Examined) -> Iterator[HostProblem]:
    """Check that the bootstrap has finished since the last boot."""
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
    """Check that all services for the host's role are active."""
    for report in examined.answered:
        for unit, state in report.of("services"):
            if state != "active":
                yield problem(report.name, "service", unit=unit, state=state)


def check_mounts(examined: Examined) -> Iterator[HostProblem]:
    """Check that workers mount the home folder and the shared path with the right NFS version and the `hard` option."""
    for report in examined.workers:
        rows = {row[0]: row[1:] for row in report.of("mounts")}
        version, server = rows.get("expected", ("", examined.cluster.head.name))
        for path in (examined.cluster.home_path, examined.cluster.shared_path):
            kind, options = rows.get(path, ("", ""))
            # Mounts have the type nfs with NFS 3, and nfs4 with NFS 4.0 to 4.2 (nfs(5), read 2026-11-24).
            if kind != ("nfs" if version == "3" else "nfs4"):
                yield problem(report.name, "mount-missing", path=path, server=server)
            elif not {"hard", f"vers={version}"} <= set(options.split(",")):
                yield problem(report.name, "mount-options", path=path, options=options, version=version, server=server)


def check_clock(examined: Examined) -> Iterator[HostProblem]:
    """Check that chrony or systemd-timesyncd synchronizes every clock and that all clocks agree with the head's."""
    head_now = _seconds(examined.head.value("clock", "now")) if examined.head else None
    for report in examined.answered:
        row = next((row for row in report.of("clock") if row[0] == "chrony"), ("chrony", "", ""))
        offset, leap = _seconds(row[1]), row[2]
        if offset is None and report.value("clock", "synchronised") == "yes":
            pass  # An existing host can use systemd-timesyncd.
        elif offset is None or leap in {"", "Not synchronised"}:
            yield problem(report.name, "clock-unsynchronized")
        now = _seconds(report.value("clock", "now"))
        if head_now is not None and now is not None and abs(now - head_now) > _CLOCK_DIFFERENCE_SECONDS:
            yield problem(report.name, "clock-head", seconds=now - head_now)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_shm(examined: Examined) -> Iterator[HostProblem]:
    """Check that shared memory is large enough for data loaders and NCCL."""
    for report in examined.workers:
        size, memory = (int(kib) for kib in report.of("shm")[0])
        if size * _SHM_SHARE < memory:
            yield problem(report.name, "shm", size=size // 1024, memory=memory // 1024)


def check_software(examined: Examined) -> Iterator[HostProblem]:
    """Check that all hosts have the same Slurm version, and all workers the same versions of Python, torch and NCCL."""
    hosts = {software: examined.workers for software in ("python", "torch", "nccl")}
    if examined.has_slurm:
        hosts["slurm"] = examined.answered
    for software, reports in hosts.items():
        versions = {report.name: report.value("software", software) or "absent" for report in reports}
        yield from unequal_versions(software, versions)


def check_queue(examined: Examined) -> Iterator[HostProblem]:
    """Check that Slurm can schedule jobs on every worker."""
    if examined.head is None:
        return
    rows = {row[0]: row[1:] for row in examined.head.of("queue")}
    authors = parse_authors("\n".join(f"{name}|{row[2]}|{row[3]}" for name, row in rows.items()))
    for name in examined.nodes:
        state, reason, *_ = rows.get(name, ("unknown to Slurm", "none"))
        if not is_in_service(state):
            cause = explain_node(state, "" if reason == "none" else reason, authors.get(name, ""))
            yield problem(name, "queue", state=state, reason=cause)


def is_slurms_own(cause: str) -> bool:
    """Return whether a fault, rather than a person, took a node out of service."""
    return cause in {NO_RESPONSE, NO_REASON} or fault(cause) is not None


def check_memlock(examined: Examined) -> Iterator[HostProblem]:
    """Check that ranks can lock an unlimited amount of memory, because RDMA locks its buffers.

    Without Slurm, ranks have the same limit as SSH logins, and this limit matters only on RDMA fabrics.
    """
    text = "memlock" if examined.has_slurm else "memlock-login"
    for name, limit in (row for report in examined.answered for row in report.of("memlock")):
        if limit != "unlimited" and (examined.has_slurm or rdma_layer(examined.nodes[name].fabric)):
            yield problem(name, text, limit=limit)


_SKIPPED = ("docker", "lo")
"""NCCL ignores interfaces with these prefixes by default, but not veth, bridge or QEMU interfaces."""


def check_interfaces(examined: Examined) -> Iterator[HostProblem]:
    """Check that fabric.env names the interface with the private address, so that NCCL and Gloo use no other one."""
    for report in examined.answered:
        address = examined.cluster.addresses[report.name]
        devices = [row[1:] for row in report.of("interfaces") if row[0] == "device"]
        ours = next((device for device, found in devices if found == address), None)
        if ours is None:
            yield problem(report.name, "interface-address", address=address)
            continue
        names = [device for device, _ in devices if device != ours and not device.startswith(_SKIPPED)]
        others = f"; other interfaces: {', '.join(names)}" if names else ""
        node = examined.nodes.get(report.name)
        # The 40-network stage explains why the values differ.
        exact = ours if node and node.fabric.startswith("gpudirect-") else f"={ours}"
        for key, expected in (("NCCL_SOCKET_IFNAME", exact), ("GLOO_SOCKET_IFNAME", ours)):
            found = report.value("interfaces", key)
            if found != expected:
                yield problem(report.name, "interface-setting", key=key, found=found, expected=expected, others=others)


def check_settings(examined: Examined) -> Iterator[HostProblem]:
    """Check that no other file contradicts the cluster's NCCL settings."""
    for report in examined.answered:
        node = examined.nodes.get(report.name)
        settings = dict(examined.cluster.env.get(node.group, {})) if node else {}
        settings |= {row[1]: row[2] for row in report.of("settings") if row[0] == "fabric"}
        for _, file, key, value in (row for row in report.of("settings") if row[0] == "file"):
            expected = settings.get(key, value)
            if value != expected:
                yield problem(report.name, "setting", file=file, key=key, found=value, expected=expected)


def check_containers(examined: Examined) -> Iterator[HostProblem]:
    """Check that the stack file's container runtime works and that the fabric's NCCL plugin is installed."""
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


def _docker_problems(report: HostReport, *, real_gpus: bool) -> Iterator[HostProblem]:
    state = report.value("containers", "docker") or "absent"
    if state != "active":
        yield problem(report.name, "docker", state=state)
    if report.value("containers", "member") != "yes":
        yield problem(report.name, "docker-group")
    if real_gpus and report.value("containers", "toolkit") != "yes":
        yield problem(report.name, "toolkit")


_FIELDS = 5


def check_health(examined: Examined) -> Iterator[HostProblem]:
    """Check that all of the host's health checks pass. Their messages come from the bundle on the host."""
    for report in examined.answered:
        rows = report.of("health")
        if ("ran",) not in rows:
            yield problem(report.name, "health")
        for check, _, text, cause, fix in (row for row in rows if len(row) == _FIELDS):
            yield HostProblem(report.name, f"{check}: {text}", cause, fix.replace("{host}", report.name))
