"""Memory on the computer that runs the local platform."""

from __future__ import annotations

import os
from pathlib import Path

from components.plan.plan import ClusterPlan
from components.platforms.local.paths import MachineFiles, runs_folder
from components.platforms.local.process import find


def free_memory(plan: ClusterPlan) -> int:
    """Return the memory in MiB that the plan's hosts can use: available memory plus the memory that they already
    use."""
    return _available_mib() + _used_mib(plan)


def _available_mib() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) // 1024


def _used_mib(plan: ClusterPlan) -> int:
    runs = list(runs_folder().glob("*"))
    pids = [find(MachineFiles(run=run, name=host.name).pidfile) for host in plan.hosts for run in runs]
    return sum(_resident_mib(pid) for pid in pids if pid is not None)


def _resident_mib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0  # the process has ended
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20
