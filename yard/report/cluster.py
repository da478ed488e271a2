"""The page of `yard report --cluster`: the jobs, the cost and the nodes of the last days."""

from __future__ import annotations

import json
import shlex
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trainyard.errors import RemoteError
from trainyard.faults import HISTORY
from yard.report.charts import bars
from yard.report.findings import findings
from yard.report.page import charts, document, paragraph, percent, table_of, time_of
from yard.report.record import Record, fetch, parse
from yard.run.cost import Cost, costs, read_on_times, total
from yard.run.queue import Job
from yard.run.schedulers import scheduler_of
from yard.show import counted, duration
from yard.stack.remote import Remote

_DAY = 86400
_MOST_BARS = 40


@dataclass(frozen=True, kw_only=True)
class Week:
    """What happened in a cluster since `start`, in seconds since 1970.

    `records` are those of the jobs that the user may read, by job number. `changes` are the times, nodes and reasons
    of nodes that left service, or returned to it if the reason is empty. `costs` is None if machines have no price.
    """

    cluster: str
    start: float
    end: float
    jobs: Sequence[Job]
    records: Mapping[int, Record]
    costs: Sequence[Cost] | None
    changes: Sequence[tuple[float, str, str]]


def read_week(remote: Remote, days: int) -> Week:
    """Read the last `days` days. An admin reads the records of all jobs, and other users those of their own jobs."""
    stack, now = remote.stack, time.time()
    start = now - days * _DAY
    jobs = scheduler_of(stack.cluster.scheduler).recent(remote, days)
    by_user: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if stack.is_admin or job.user == stack.user:
            by_user[job.user].append(job)
    records = {}
    for found in (found for some in by_user.values() for found in fetch(remote, some, skips=True)):
        with suppress(ValueError):  # a damaged record is shown as a job without a record
            record = parse(found)
            records[record.job.id] = record
    spent = None
    if stack.cluster.prices is not None and stack.cluster.scheduler == "slurm":
        with suppress(RemoteError):  # the head records times only in clusters with prices
            intervals, clock = read_on_times(remote)
            spent = costs(intervals, stack.cluster, start, min(now, clock))
    path = shlex.quote(f"{stack.cluster.state_dir}/{HISTORY}")
    history = json.loads(remote.run(f"cat {path} 2>/dev/null || echo '{{}}'")).get("history", {})
    changes = sorted(
        (change["time"], node, change["reason"])
        for node, rows in history.items()
        for change in rows
        if change["time"] >= start
    )
    return Week(
        cluster=stack.cluster.name, start=start, end=now, jobs=jobs, records=records, costs=spent, changes=changes
    )


def cluster_page(week: Week) -> str:
    """Return the page."""
    states = [job.state for job in week.jobs]
    bills = [record.bill for record in week.records.values() if record.bill is not None]
    used = [record.goodput.goodput for record in week.records.values() if record.goodput is not None]
    spent = None if week.costs is None else total(week.costs)
    values = {
        "jobs": str(len(states)),
        "failed": str(sum(state in {"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "LOST"} for state in states)),
        "GPU hours": f"{sum(bill.gpu_hours for bill in bills):,.1f}" if bills else "",
        "cluster cost": "" if spent is None else f"${spent:,.2f}",
        "median goodput": percent(100 * statistics.median(used)) if used else "",
    }
    sections = {
        "Jobs": "".join(_jobs(week)),
        "Findings": "".join(_findings(week)),
        "Cost": "".join(_cost(week)),
        "Nodes": "".join(_nodes(week)),
    }
    days = round((week.end - week.start) / _DAY)
    return document(
        title=f"Cluster {week.cluster}: the last {counted(days, 'day')}",
        subtitle=f"From {time_of(week.start)} to {time_of(week.end)}.",
        values={name: value for name, value in values.items() if value},
        sections=sections,
        written=week.end,
    )


def gpu_use(record: Record) -> float | None:
    """Return the mean use of the job's GPUs in its last start, in percent, or None without samples."""
    found = [gpu.mean_use for node in record.last for gpu in node.gpus if gpu.mean_use is not None]
    return statistics.fmean(found) if found else None


def _jobs(week: Week) -> Iterator[str]:
    rows, hours = [], []
    for job in week.jobs:
        record = week.records.get(job.id)
        bill, goodput = (record.bill, record.goodput) if record else (None, None)
        gpu_hours = "" if bill is None else f"{bill.gpu_hours:.2f}"
        rows.append(
            (
                str(job.id), job.user, job.name, job.state, str(job.nodes), duration(job.elapsed_s), gpu_hours,
                f"${record.usd:,.2f}" if record is not None and record.usd is not None else "",
                percent(None if goodput is None else 100 * goodput.goodput),
                percent(gpu_use(record) if record else None),
            )
        )  # fmt: skip
        if bill is not None:
            use = gpu_use(record) if record else None
            text = f"{bill.gpu_hours:.1f}" + ("" if use is None else f", {use:.0f} % used")
            hours.append((f"job {job.id} {job.user}", bill.gpu_hours, text))
    most = sorted(hours, key=lambda row: -row[1])[:_MOST_BARS]
    yield charts(bars("GPU hours and mean use of the GPUs", most, "hours"))
    columns = ("job", "user", "name", "state", "nodes", "time", "GPU hours", "cost", "goodput", "GPU use")
    yield table_of("Jobs, newest first", columns, rows)
    if missing := len(week.jobs) - len(week.records):
        yield paragraph(f"{counted(missing, 'job')} without a readable record: jobs of other users or without yard.")


def _findings(week: Week) -> Iterator[str]:
    rows = [
        (f"job {number}", found.kind, found.text)
        for number, record in sorted(week.records.items(), reverse=True)
        for found in findings(record)
    ]
    yield table_of("What is noticeable in jobs", ("job", "finding", "details"), rows)
    blamed: dict[str, set[int]] = defaultdict(set)
    for number, record in week.records.items():
        for found in findings(record):
            for node in found.nodes:
                blamed[node].add(number)
    repeated = [(node, ", ".join(map(str, sorted(jobs)))) for node, jobs in sorted(blamed.items()) if len(jobs) > 1]
    yield table_of("Nodes that are named in findings of several jobs", ("node", "jobs"), repeated)


def _cost(week: Week) -> Iterator[str]:
    if not week.costs:
        yield paragraph("The machines have no recorded cost.")
        return
    days: dict[str, list[Cost]] = defaultdict(list)
    for row in week.costs:
        days[row.day].append(row)
    sums = {day: total(rows) for day, rows in sorted(days.items())}
    known = [(day, usd, f"${usd:,.2f}") for day, usd in sums.items() if usd is not None]
    yield charts(bars("Cost of the cluster by day (UTC)", known, "dollars"))
    parts: dict[str, list[Cost]] = defaultdict(list)
    for row in week.costs:
        parts[row.part].append(row)
    lines = [
        (part, f"{sum(row.hours for row in rows):,.1f}", "unknown" if (usd := total(rows)) is None else f"${usd:,.2f}")
        for part, rows in sorted(parts.items())
    ]
    yield table_of("Cost by part at list prices", ("part", "machine hours", "cost"), lines)
    yield paragraph("`yard cost` says what is not included.")


def _nodes(week: Week) -> Iterator[str]:
    if not week.changes:
        yield paragraph("No node left service.")
        return
    rows = [(time_of(when), node, reason or "in service again") for when, node, reason in reversed(week.changes)]
    yield table_of("Nodes that left service and returned, newest first", ("time", "node", "reason"), rows)
