"""Jobs that do not use their GPUs (limits.idle_gpu): warns their owners, and ends or requeues them.

Nodes report idle jobs through Slurm (health/idle.py). A job is idle if all its nodes report it, for the shortest of the
reported times. A node that runs no health daemon, such as a head that is also a worker, reports nothing.

A job's number is also the number of its array for one task of the array, and most commands of Slurm then act on the
whole array. Tasks are therefore named like 7_3. Ending a component of a heterogeneous job ends the whole job, so these
jobs are ignored (scancel(1) and scontrol(1) of Slurm 24.11, read 2026-11-27).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from health.slurm import job_name

from trainyard.idle_gpus import parse_reports, render_end

NOTICE_SECONDS = 300.0
"""The shortest time between the notice to a job and its end, for example after the limit was lowered."""
_CHECK_SECONDS = 15.0
_FIELDS = ("JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "NumNodes", "StartTime", "BatchFlag", "Requeue")
_LIST = ("-h", "-a", "-t", "R", "-O", ",".join(f"{name}:20" for name in _FIELDS))
"""The options with which squeue lists running jobs. The fields contain no text that a user can choose."""
_SLACK_SECONDS = 60
"""By how much the clocks of the head and a node may differ."""
_SHOWN = 10


@dataclass(frozen=True)
class IdleLimit:
    """The section `idle_gpu` of repair.json. `action` is `warn`, `end` or `requeue`."""

    minutes: int
    action: str

    @property
    def effect(self) -> str:
        verb = {"end": "ends", "requeue": "requeues"}.get(self.action)
        return f"limits.idle_gpu {verb} a job after {self.minutes} minutes" if verb else "see limits.idle_gpu"


@dataclass(frozen=True)
class Running:
    """A running job. `name` is its number, or its array and task, such as 7_3."""

    number: int
    name: str
    nodes: int
    start: float
    may_requeue: bool


def parse_running(listed: str) -> list[Running]:
    """Parse the output of squeue with the options in _LIST. Components of heterogeneous jobs are omitted."""
    found = []
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) != len(_FIELDS) or fields[3] != "N/A":
            continue
        number, array, task, _, nodes, start, is_batch, requeue = fields
        if number.isdigit() and nodes.isdigit() and start.isdigit():
            name = job_name(number, array, task)
            found.append(Running(int(number), name, int(nodes), float(start), is_batch == requeue == "1"))
    return found


@dataclass
class IdleJobs:
    """Compares the nodes' reports with the limit."""

    limit: IdleLimit
    control: Callable[..., str | None]
    """Runs scontrol, and returns None if it failed."""
    queue: Callable[..., str | None]
    """Runs squeue, and returns None if it failed."""
    cancel: Callable[..., str | None]
    """Runs scancel, and returns None if it failed."""
    notice: str = ""
    """A sentence for all users about the idle jobs, or an empty one if there are none."""
    notified: dict[Running, float] = field(default_factory=dict)
    """Mapping from each idle job to the time of its notice."""
    checked: float | None = None

    def run_once(self, nodes: str, now: float, wall: float) -> None:
        """Warn idle jobs, and end those that have reached the limit. `nodes` is from `scontrol -o show node`.

        `now` is a monotonic time, and `wall` is in seconds since 1970.
        """
        if self.checked is not None and now - self.checked < _CHECK_SECONDS:
            return
        self.checked = now
        idle = self._idle_jobs(nodes, wall)
        if idle is None:
            return
        self.notified = {job: self.notified[job] for job in idle if job in self.notified}
        for job, seconds in idle.items():
            if job not in self.notified:
                self._warn(job, seconds)
                self.notified[job] = now
            elif seconds >= 60 * self.limit.minutes and now - self.notified[job] >= NOTICE_SECONDS:
                self._end(job)
        names = sorted(job.name for job in idle)
        rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = f"jobs that do not use their GPUs: {', '.join(names[:_SHOWN])}{rest}; {self.limit.effect}"
        self.notice = shown if names else ""

    def _idle_jobs(self, nodes: str, wall: float) -> dict[Running, int] | None:
        """Return a mapping from idle job to its idle time in seconds, or None if Slurm does not answer."""
        reports = parse_reports(nodes, wall)
        if not reports:
            return {}
        listed = self.queue(*_LIST)
        if listed is None:
            return None
        found = {}
        for job in parse_running(listed):
            times = reports.get(job.number, [])
            seconds = min(times, default=0)
            # A requeued job keeps its number, so a longer time is from the job's earlier start.
            is_current = max(times, default=0) <= wall - job.start + _SLACK_SECONDS
            if len(times) == job.nodes and is_current and seconds >= 30 * self.limit.minutes:
                found[job] = seconds
        return found

    def _warn(self, job: Running, seconds: int) -> None:
        text = f"the GPUs of this job have not been used for {seconds // 60} minutes; {self.limit.effect}"
        self.control("notify", str(job.number), text)

    def _end(self, job: Running) -> None:
        """End or requeue a job, as the stack file says. If this fails, the next call repeats it."""
        if self.limit.action == "warn":
            return
        # Slurm cannot requeue a session or a job that was submitted with --no-requeue.
        action = "requeue" if self.limit.action == "requeue" and job.may_requeue else "end"
        comment = render_end(action, self.limit.minutes)
        if self.control("update", f"jobid={job.name}", f"admincomment={comment}") is None:
            return
        done = self.control("requeue", job.name) if action == "requeue" else self.cancel(job.name)
        sys.stderr.write(f"job {job.name}: {comment}{'' if done is not None else ' failed'}\n")
