"""Plans a stack file's cluster for `yard submit --dry-run`, and estimates a job's cost. This needs no cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from components.cluster.outputs import Reach, cluster_outputs
from components.node.user_data import JOB_USER
from components.stackfile.read import read_stack
from trainyard import project
from trainyard.outputs import Cluster, Head
from yard.preview.printing import costs
from yard.run.submit import Prepared
from yard.show import counted, duration
from yard.stack.workspace import committed_text, short_name

_NOWHERE = "192.0.2.1"
"""An address that belongs to no machine (RFC 5737)."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A planned cluster from the stack file `file`. `reason` explains why the stack has no outputs.

    `costs` describes the cluster's list prices.
    """

    file: str
    reason: str
    cluster: Cluster
    costs: Sequence[str]

    @property
    def notice(self) -> str:
        """A notice that tells users that a plan replaces the cluster."""
        return f"dry run with the plan of {self.file}, without a cluster"


def estimate(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> dict[str, Any]:
    """Return the estimated cost in the format that `--json` prints. Unknown values are None."""
    job = jobs[0]
    hourly = None if job.usd_per_hour is None else round(job.usd_per_hour, 2)
    limit = None if hourly is None else round(hourly * job.seconds / 3600 * len(jobs), 2)
    return {
        "source": "plan",
        "file": rehearsal.file,
        "group": job.group or None,
        "nodes": job.nodes or None,
        "cluster_usd_per_hour": rehearsal.cluster.usd_per_hour,
        "job_usd_per_hour": hourly,
        "limit_s": job.seconds or None,
        "usd_at_limit": limit,
        "max_usd": job.max_usd,
        # The duration is unknown, because no job's run on a cloud is recorded.
        "time_s": None,
    }


def estimate_lines(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> Iterator[str]:
    """Yield the estimated cost as sentences."""
    job, found = jobs[0], estimate(rehearsal, jobs)
    if not job.nodes:
        yield "job: its size is in the script, so yard does not check whether it fits; Slurm checks it"
    else:
        each = f"each of {len(jobs)} jobs" if len(jobs) > 1 else "job"
        hourly = "unknown" if found["job_usd_per_hour"] is None else f"${found['job_usd_per_hour']:.2f}"
        group = job.group.replace(",", " or ")
        yield f"{each}: fits on {counted(job.nodes, 'node')} of group {group}; list price per hour: {hourly}"
        cost = "" if found["usd_at_limit"] is None else f", which costs at most ${found['usd_at_limit']:.2f}"
        ends = f"each start ends after {duration(job.seconds)}{cost}"
        yield f"time: unknown, because no run on these machines is recorded; {ends}"
        yield (
            job.cost_limit
            or "cost limit: none, and a job can start several times. To set one: `max_usd` in the job file"
        )
    yield from (f"cluster: {line}" for line in rehearsal.costs)
    if job.environment is None:
        yield "environment: Python of the nodes or the container; images of clouds have no PyTorch (use --env torch)"
    yield rehearsal.notice


def rehearse(stack: str, reason: str) -> Rehearsal:
    """Return the cluster that a stack file describes. `reason` says why the stack has no outputs.

    Raises StackError if the file does not exist, and StackFileError if it breaks rules.
    """
    stack = short_name(stack)
    committed_text(stack)
    file = project.stack_file(stack)
    plan = read_stack(project.ROOT / file).plan
    head = Head(
        name=plan.head.name,
        address=_NOWHERE,
        port=22,
        private_ip=str(plan.head.private_ip),
        user=JOB_USER,
        admin_user="",
        host_key="",
    )
    workers = {host.name: Reach(host_key="", address=None, port=22) for host in plan.nodes}
    return Rehearsal(
        file=file,
        reason=reason,
        cluster=cluster_outputs(plan, head, workers),
        costs=tuple(costs(plan)),
    )
