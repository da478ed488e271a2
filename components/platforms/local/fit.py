"""What a stack file may ask of this machine. Pure but for reading how much memory is free."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

from components.errors import Problem
from components.plan import ClusterPlan, HostPlan
from components.platforms.local.paths import PIDFILE, runs_folder
from components.platforms.local.process import find
from components.spec import AccessSpec, ClusterSpec, SharedStorageSpec

EXTERNAL_NETWORK = IPv4Network("10.0.2.0/24")
"""What QEMU's user-mode network uses inside every machine."""
GROUP_PORTS = 32
"""Ports set aside for each node group, so that growing one never moves another's."""
_OVERHEAD_MIB = 350
"""Host memory of one QEMU beyond its guest's: up to 256 MiB of translated code and QEMU itself (measured)."""


def ssh_port(base: int, plan: ClusterPlan, host: HostPlan) -> int:
    """Return the loopback port of a host: the head's is `base`, node i of group g (from 0) gets 1 + 32 g + i more."""
    if host.group is None:
        return base
    return base + 1 + plan.groups.index(host.group) * GROUP_PORTS + host.index


def problems(spec: ClusterSpec, plan: ClusterPlan) -> list[Problem]:
    """Return every reason why this plan cannot run on this machine."""
    memory = _memory(plan, available_mib() + held_mib(plan))
    return [*_network(plan), *_group_sizes(spec), *_clouds_only(spec), *memory]


def available_mib() -> int:
    """Return the memory that can be had without swapping: MemAvailable of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    raise ValueError("/proc/meminfo has no MemAvailable")


def held_mib(plan: ClusterPlan) -> int:
    """Return the memory that machines of this plan hold already: theirs to use again, so it counts as free."""
    pids = (find(pidfile) for host in plan.hosts for pidfile in runs_folder().glob(f"*/{host.name}/{PIDFILE}"))
    return sum(_resident_mib(pid) for pid in pids if pid is not None)


def _resident_mib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) // 1024


def _network(plan: ClusterPlan) -> list[Problem]:
    if not plan.network.overlaps(EXTERNAL_NETWORK):
        return []
    return [
        Problem(
            path="cluster.network.cidr",
            rule=f"{plan.network} overlaps {EXTERNAL_NETWORK}, which every local machine has towards its host",
            fix="choose another private range, for example 10.77.0.0/20",
        )
    ]


def _group_sizes(spec: ClusterSpec) -> list[Problem]:
    return [
        Problem(
            path=f"cluster.nodes.{name}.count",
            rule=f"a group of the local platform has at most {GROUP_PORTS} nodes, not {group.count}",
            fix=f"use {GROUP_PORTS} or fewer, or spread them over two groups",
        )
        for name, group in spec.nodes.items()
        if group.count > GROUP_PORTS
    ]


def _clouds_only(spec: ClusterSpec) -> list[Problem]:
    """What a stack file may ask of a cloud and this platform does not have."""
    asked = {
        **{f"nodes.{name}.placement": group.placement != "none" for name, group in spec.nodes.items()},
        **{f"nodes.{name}.capacity": group.capacity.kind != "on_demand" for name, group in spec.nodes.items()},
        "storage.shared": spec.storage.shared != SharedStorageSpec(),
        "access": spec.access != AccessSpec(),
    }
    return [
        Problem(
            path=f"cluster.{place}",
            rule="the local platform has only its default: machines side by side on this host, files on the head's own "
            "disk, ssh on 127.0.0.1",
            fix="leave it out",
        )
        for place, is_asked in asked.items()
        if is_asked
    ]


def _memory(plan: ClusterPlan, available: int) -> list[Problem]:
    needed = sum(host.machine.memory_mib + _OVERHEAD_MIB for host in plan.hosts)
    if needed <= available:
        return []
    return [
        Problem(
            path="cluster.nodes",
            rule=f"{len(plan.hosts)} machines need {needed} MiB of memory here and {available} MiB are free",
            fix="use fewer or smaller machines, or free some memory",
        )
    ]
