"""The cluster's metrics: nodes, jobs, GPUs and cost. The collector on the head passes them to the node exporter.

The nodes come from the listing that trainyard-repair makes in any case, and the jobs from one call of squeue.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from health.slurm import SlurmNode
from metrics.page import Page, write

from repair.budget import spent
from repair.power import BUSY
from trainyard.faults import HEAD, cause_of, is_in_service, is_off
from trainyard.on_times import SERVICES

INTERVAL_SECONDS = 30.0
FILE = "repair/metrics.prom"
"""The file below /var/lib/trainyard on the head. The collector reads it (FIGURES in metrics/collector.py)."""
JOBS = ("-h", "-a", "-O", "State:20,UserName:40,tres-alloc:400")
"""The options with which squeue lists the jobs. None of the fields contains text that a user has chosen."""
_FIELDS = 3
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TRES = re.compile(r"(?m)^NodeName=(\S+) .*? CfgTRES=(\S*)\s+AllocTRES=(\S*)")


def gpus(tres: str) -> int:
    """Return the number of GPUs in a list of TRES, for example 8 for "cpu=96,gres/gpu=8"."""
    found = _GPUS.search(tres)
    return int(found[1]) if found else 0


def add_nodes(page: Page, nodes: Mapping[str, SlurmNode], shown: str) -> None:
    """Add the states of the nodes. `shown` is the output of `scontrol -o show node`."""
    counts = Counter({"busy": 0, "idle": 0, "off": 0, "out": 0})
    for name, node in nodes.items():
        in_service, off = is_in_service(node.state), is_off(node.state)
        counts["off" if off else "out" if not in_service else "idle" if node.flags.isdisjoint(BUSY) else "busy"] += 1
        page.add("trainyard_node_in_service", in_service, node=name)
        page.add("trainyard_node_off", off, node=name)
        cause = cause_of(node.reason)
        if cause is not None and not in_service:
            page.add("trainyard_node_fault", 1, node=name, cause=cause)
    for state, count in counts.items():
        page.add("trainyard_nodes", count, state=state)
    rows = [(name, *map(gpus, tres)) for name, *tres in _TRES.findall(shown) if name in nodes]
    page.add("trainyard_gpus_in_service", sum(row[1] for row in rows if is_in_service(nodes[row[0]].state)))
    page.add("trainyard_gpus_allocated", sum(row[2] for row in rows))


def add_jobs(page: Page, listed: str) -> None:
    """Add the jobs and the GPUs of each user. `listed` is the output of squeue with the options JOBS."""
    jobs: Counter[tuple[str, str]] = Counter()
    used: Counter[str] = Counter()
    for line in listed.splitlines():
        state, user, tres = (*line.split(), "", "", "")[:_FIELDS]
        jobs[state.lower(), user] += 1
        if state == "RUNNING":
            used[user] += gpus(tres)
    for (state, user), count in sorted(jobs.items()):
        page.add("trainyard_jobs", count, state=state, user=user)
    for user, count in sorted(used.items()):
        page.add("trainyard_user_gpus", count, user=user)


@dataclass
class Figures:
    """Writes the metrics at most every INTERVAL_SECONDS."""

    path: Path
    record: Path
    """The times at which machines were on (trainyard.faults.ON_TIMES)."""
    usd_per_hour: Mapping[str, float]
    """The list prices (Budget.usd_per_hour)."""
    limit: float | None
    """The limit of a month's cost in dollars."""
    queue: Callable[..., str | None]
    """Runs squeue, and returns None if it failed."""
    written: float | None = None

    def run_once(self, nodes: Mapping[str, SlurmNode], shown: str, now: float, wall: float) -> None:
        """Write the metrics if they are due. `shown`: see `add_nodes`.

        `now` is a monotonic time, and `wall` is in seconds since 1970.
        """
        if self.written is not None and now - self.written < INTERVAL_SECONDS:
            return
        self.written = now
        page = Page()
        add_nodes(page, nodes, shown)
        listed = self.queue(*JOBS)
        if listed is not None:
            add_jobs(page, listed)
        if self.usd_per_hour:
            on = [HEAD, SERVICES, *(name.rpartition("-")[0] for name, node in nodes.items() if not is_off(node.state))]
            page.add("trainyard_usd_per_hour", sum(self.usd_per_hour.get(part, 0.0) for part in on))
            record = self.record.read_text() if self.record.exists() else ""
            page.add("trainyard_spent_usd", spent(record, self.usd_per_hour, wall))
        if self.limit is not None:
            page.add("trainyard_limit_usd", self.limit)
        write(self.path, page.text)
