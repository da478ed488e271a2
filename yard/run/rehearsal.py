"""Rehearsals: `yard submit --dry-run` with the plan of a stack file instead of a cluster. Estimates the cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.outputs import Cluster
from yard.run.submit import Prepared
from yard.show import duration

_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A planned cluster. `file` is the stack file, and `reason` is why the stack has no outputs.

    `costs` describes the list prices of the cluster, and `node_usd` is the list price of one node in each group in
    dollars per hour, or None if it is unknown.
    """

    file: str
    reason: str
    cluster: Cluster
    costs: Sequence[str]
    node_usd: Mapping[str, float | None]

    @property
    def notice(self) -> str:
        """Message that a plan was used instead of a cluster."""
        return f"dry run with the plan of {self.file}, without a cluster"


def estimate(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> dict[str, Any]:
    """Return the estimate in the format that `--json` prints. Unknown values are None."""
    job = jobs[0]
    price = rehearsal.node_usd.get(job.group)
    hourly = None if price is None else round(price * job.nodes, 2)
    limit = None if hourly is None else round(hourly * job.seconds / _HOUR * len(jobs), 2)
    return {
        "source": "plan",
        "file": rehearsal.file,
        "group": job.group or None,
        "nodes": job.nodes or None,
        "cluster_usd_per_hour": rehearsal.cluster.usd_per_hour,
        "job_usd_per_hour": hourly,
        "limit_s": job.seconds or None,
        "usd_at_limit": limit,
        # No run of a job on a cloud is recorded.
        "time_s": None,
    }


def estimate_lines(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> Iterator[str]:
    """Yield the estimate as sentences."""
    job, found = jobs[0], estimate(rehearsal, jobs)
    if not job.nodes:
        yield "job: its size is in the script, so yard does not check whether it fits; Slurm checks it"
    else:
        yield from _job_lines(job, found, len(jobs))
    yield from (f"cluster: {line}" for line in rehearsal.costs)
    if job.environment is None:
        yield "environment: Python of the nodes or the container; images of clouds have no PyTorch (use --env torch)"
    yield rehearsal.notice


def _job_lines(job: Prepared, found: Mapping[str, Any], count: int) -> Iterator[str]:
    """Yield whether the job fits, and its cost."""
    each = f"each of {count} jobs" if count > 1 else "job"
    hourly = "unknown" if found["job_usd_per_hour"] is None else f"${found['job_usd_per_hour']:.2f}"
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    yield f"{each}: fits on {nodes} of group {job.group}; list price per hour: {hourly}"
    cost = "" if found["usd_at_limit"] is None else f", which costs at most ${found['usd_at_limit']:.2f}"
    limit = duration(job.seconds)
    yield f"time: unknown, because no run on these machines is recorded; each start ends after {limit}{cost}"
