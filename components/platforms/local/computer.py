"""Free memory and ports on the computer that runs the local platform."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from components.plan.check import Computer
from components.plan.plan import ClusterPlan
from components.platforms.local.machine import FORWARDED_PORT
from components.platforms.local.paths import MachineFiles, runs_folder
from components.platforms.local.process import find, port_in_use, started_under


def free_memory(plan: ClusterPlan) -> int:
    """Return the memory in MiB that the plan's hosts can use: the free memory and the memory that they already use."""
    return available_mib() + _used_mib(plan)


def used_ports(plan: ClusterPlan, ports: Sequence[int]) -> list[int]:
    """Return the ports in `ports` that are in use on 127.0.0.1, except those of this stack's VMs in this checkout."""
    used = [port for port in ports if port_in_use(port)]
    own = set(_own_ports(plan)) if used else set()
    return [port for port in used if port not in own]


THIS_COMPUTER = Computer(free_memory=free_memory, used_ports=used_ports)


def _own_ports(plan: ClusterPlan) -> Iterator[int]:
    """Yield the SSH ports of all VMs in each run that contains the plan's head."""
    for run in runs_folder().glob("*"):
        if not MachineFiles(run=run, name=plan.head.name).folder.is_dir():
            continue
        for pid in started_under(run):
            with suppress(OSError):  # the process has ended
                yield from map(int, re.findall(FORWARDED_PORT, Path(f"/proc/{pid}/cmdline").read_text()))


def available_mib() -> int:
    """Return the memory in MiB that new programs can use."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) // 1024


def _used_mib(plan: ClusterPlan) -> int:
    runs = list(runs_folder().glob("*"))
    pids = [find(MachineFiles(run=run, name=host.name).pidfile) for host in plan.hosts for run in runs]
    return sum(resident_mib(pid) for pid in pids if pid is not None)


def resident_mib(pid: int) -> int:
    """Return the memory in MiB that a process uses, or 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    return 0
