"""The monthly cost limit (limits.max_usd_per_month): what the month has cost at list prices, and what follows from it.

`scontrol requeue` refuses jobs without a batch script and jobs with `--no-requeue` (_job_requeue_op in
slurmctld/job_mgr.c of Slurm 23.11.4 and 24.11.5, read 2026-11-27). These get a time limit of one minute, which has
passed, and end with the state TIMEOUT. A requeued job keeps its time limit, so the limit of other jobs is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from health.slurm import JOB_FIELDS, job_name

from trainyard.on_times import month_bounds, month_of, parse_on_times

WARNING_SHARE = 0.8
NOTICE_SECONDS = 300.0
"""The time between the notice to a job and its end."""
SPENT = "limits.max_usd_per_month is spent"
_CHECK_SECONDS = 60.0
_HOUR = 3600.0
_LIST = ("-h", "-a", "-t", "R,CF,S", "-o", f"{JOB_FIELDS} %P")
"""The options with which squeue lists running jobs and their partitions."""
_NO_REQUEUE = re.compile(r" (?:Requeue|BatchFlag)=0\b")


@dataclass(frozen=True)
class Budget:
    """The section `budget` of repair.json. `when_spent` is `finish` or `requeue`."""

    usd_per_month: float
    when_spent: str
    usd_per_hour: Mapping[str, float]
    """The list prices of HEAD, of SERVICES and of a node of each group. The key of a group is its nodes' name without
    the number. Unknown prices are missing."""


def spent(record: str, usd_per_hour: Mapping[str, float], now: float) -> float:
    """Return what the current month (UTC) has cost in dollars, as `yard cost` does. `record` is the text of ON_TIMES.

    `now` is in seconds since 1970. Machines without a price cost nothing.
    """
    start, _ = month_bounds(month_of(now))
    return (
        sum(
            usd_per_hour.get(name, usd_per_hour.get(name.rpartition("-")[0], 0.0)) * max(0.0, last - max(first, start))
            for name, times in parse_on_times(record, now).items()
            for first, last in times
        )
        / _HOUR
    )


def notice(usd: float, limit: float, now: float) -> str:
    """Return a sentence for users about the month's cost, or an empty one below WARNING_SHARE of the limit."""
    month = month_of(now)
    text = f"${int(usd):,} of the ${limit:,.0f} of limits.max_usd_per_month are spent ({month})"
    if usd >= limit:
        after = month_of(month_bounds(month)[1])
        fix = "raise the limit in the stack file and run `pulumi up`"
        return f"{text}, so no new jobs start before {after}-01 (UTC). Fix: wait, or {fix}"
    return f"{text}; at 100 % no new jobs start" if usd >= WARNING_SHARE * limit else ""


@dataclass
class Meter:
    """Computes the month's cost once a minute, and ends jobs if the stack file requires it."""

    budget: Budget
    record: Path
    control: Callable[..., str | None]
    """Runs scontrol, and returns None if it failed."""
    queue: Callable[..., str | None]
    """Runs squeue, and returns None if it failed."""
    notice: str = ""
    is_spent: bool = False
    checked: float | None = None
    notified: dict[str, float] = field(default_factory=dict)
    """Mapping from the name of a running job (job_name) to the time of its notice."""

    def run_once(self, partitions: Collection[str], now: float, wall: float) -> None:
        """Check the month's cost. `partitions` are those whose jobs end.

        `now` is a monotonic time, and `wall` is in seconds since 1970.
        """
        if self.checked is not None and now - self.checked < _CHECK_SECONDS:
            return
        self.checked = now
        usd = spent(self.record.read_text() if self.record.exists() else "", self.budget.usd_per_hour, wall)
        self.is_spent = usd >= self.budget.usd_per_month
        self.notice = notice(usd, self.budget.usd_per_month, wall)
        if self.is_spent and self.budget.when_spent == "requeue":
            self._end_jobs(partitions, now)

    def _end_jobs(self, partitions: Collection[str], now: float) -> None:
        # Not with scontrol, because a job's name could imitate other jobs there.
        shown = self.queue(*_LIST)
        if shown is None:
            return
        rows = (line.split() for line in shown.splitlines())
        running = [job_name(*fields) for *fields, partition in rows if partition in partitions]
        for job in running:
            if job not in self.notified:
                self.control("notify", job, f"{SPENT}: this job is requeued or ended in {NOTICE_SECONDS / 60:.0f} min")
        self.notified = {job: self.notified.get(job, now) for job in running}
        for job, since in self.notified.items():
            if now - since < NOTICE_SECONDS:
                continue
            row = self.control("-o", "show", "job", job) or ""
            # A job that has ended meanwhile would run again.
            if not (self.queue(*_LIST, "-j", job) or "").strip():
                continue
            is_ended = _NO_REQUEUE.search(row) is not None
            self.control(*(("update", f"jobid={job}", "timelimit=1") if is_ended else ("requeue", job)))
