"""`yard cost`: what the cluster has cost, from the head's record of when machines were on (trainyard-repair)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from trainyard.errors import JobError
from trainyard.faults import HEAD, ON_TIMES
from trainyard.on_times import SERVICES, Intervals, month_bounds, month_of, parse_on_times
from trainyard.outputs import Cluster, Prices
from yard.run.jobs import expand, goodputs_of
from yard.run.queue import Job
from yard.show import counted, say, say_json, table
from yard.stack.remote import Remote

_HOUR = 3600.0
_AVERAGE_DAYS = 7
_SEPARATOR = "===cost==="
_JOB_FIELDS = "JobIDRaw,User,ElapsedRaw,NodeList,AllocTRES"
_NOT_INCLUDED = (
    "network traffic (yard preview prints its price per GB)",
    "discounts",
    "taxes",
    "and the time before the head's record began",
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a part of the cluster (`head`, `services` or a node group) on a UTC day.

    `hours` is the sum of the hours in which the part's machines were on. `usd` is None if the price is unknown.
    """

    day: str
    part: str
    hours: float
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """A job's share of the price of its nodes, according to its GPUs. `usd` is None if the price is unknown."""

    job: int
    user: str
    name: str
    gpu_hours: float
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class JobBill:
    """What a job has cost in dollars: for useful steps, for steps that a later start repeated, for checkpoints, and for
    everything else. `usd_per_step` is the price of a useful step. Values are None if a price is unknown or the job's
    program has recorded no steps.
    """

    job: int
    user: str
    name: str
    starts: int
    gpu_hours: float
    usd: float | None
    steps: int = 0
    redone_steps: int = 0
    usd_per_step: float | None = None
    useful_usd: float | None = None
    redone_usd: float | None = None
    saving_usd: float | None = None
    other_usd: float | None = None


def costs(intervals: Intervals, cluster: Cluster, start: float, end: float) -> list[Cost]:
    """Return the cost of each part on each UTC day between `start` and `end`, sorted by day and part."""
    hours: dict[tuple[str, str], float] = {}
    has_services = cluster.prices is not None and cluster.prices.services != 0
    for node, times in intervals.items():
        if node == SERVICES and not has_services:
            continue
        part = _group_of(node, cluster)
        for day, seconds in _by_day(times, start, end):
            hours[day, part] = hours.get((day, part), 0.0) + seconds / _HOUR
    rows = []
    for (day, part), used in sorted(hours.items()):
        price = _price(part, cluster)
        usd = None if price is None else round(used * price, 2)
        rows.append(Cost(day=day, part=part, hours=round(used, 2), usd=usd))
    return rows


def _group_of(node: str, cluster: Cluster) -> str:
    """Return HEAD, SERVICES or a node's group. The name of a removed node also contains its group."""
    if node in {HEAD, SERVICES}:
        return node
    known = {other.name: other.group for other in cluster.nodes}
    return known.get(node) or node.removeprefix(f"{cluster.name}-").rpartition("-")[0] or node


def _price(part: str, cluster: Cluster) -> float | None:
    prices = cluster.prices or Prices()
    return {HEAD: prices.head, SERVICES: prices.services}.get(part, prices.nodes.get(part))


def _by_day(times: Iterable[tuple[float, float]], start: float, end: float) -> Iterator[tuple[str, float]]:
    """Yield the seconds on each UTC day that are in the intervals and between `start` and `end`."""
    for first, last in times:
        begin, limit = max(first, start), min(last, end)
        while begin < limit:
            day = datetime.fromtimestamp(begin, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
            midnight = min((day + timedelta(days=1)).timestamp(), limit)
            yield f"{day:%Y-%m-%d}", midnight - begin
            begin = midnight


def forecast(intervals: Intervals, cluster: Cluster, now: float) -> float | None:
    """Return the expected cost of the current month in dollars, or None if a price is unknown.

    For the rest of the month, the average of the last seven days, or of the time since the record began, continues.
    """
    start, end = month_bounds(month_of(now))
    began = min((times[0][0] for times in intervals.values()), default=now)
    since = max(now - _AVERAGE_DAYS * 24 * _HOUR, began)
    spent, recent = (total(costs(intervals, cluster, begin, now)) for begin in (start, since))
    if spent is None or recent is None or now <= since:
        return None
    return round(spent + recent / (now - since) * (end - now), 2)


def total(rows: Iterable[Cost | JobCost]) -> float | None:
    """Return the sum in dollars, or None if a price is unknown."""
    found = [row.usd for row in rows]
    return None if None in found else round(sum(filter(None, found)), 2)


def sacct(options: str) -> str:
    """Return the command that prints jobs for `job_costs`. The names come last, because they can contain any text."""
    line = f"TZ=UTC sacct -X -n -P {options} -o"
    return f"{line} {_JOB_FIELDS}; echo {_SEPARATOR}; {line} JobIDRaw,JobName"


def job_costs(text: str, cluster: Cluster) -> list[JobCost]:
    """Return the cost of the jobs in the output of `sacct`, most expensive first. Jobs without GPUs are omitted."""
    nodes = {node.name: node for node in cluster.nodes}
    rows, _, named = text.partition(f"{_SEPARATOR}\n")
    names: dict[str, set[str]] = {}
    for number, name in re.findall(r"(?m)^(\d+)\|(.*)$", named):
        names.setdefault(number, set()).add(name)
    found = []
    for row in rows.splitlines():
        number, user, seconds, node_list, tres = row.split("|")
        used = re.search(r"\bgres/gpu=(\d+)", tres)
        first = nodes.get(next(expand(node_list), ""))
        if used is None or not number.isdecimal() or not seconds.isdecimal():
            continue
        # The name of a different job can contain a line break and imitate a row.
        name, *others = names.get(number, {""})
        name = "(several names)" if others else name
        gpu_hours = int(used[1]) * int(seconds) / _HOUR
        price = _price(first.group, cluster) if first else None
        usd = None if price is None or first is None else round(gpu_hours * price / first.gpus, 2)
        found.append(JobCost(job=int(number), user=user, name=name, gpu_hours=round(gpu_hours, 2), usd=usd))
    return sorted(found, key=lambda job: (-(job.usd or 0), job.job))


def job_bill(text: str, cluster: Cluster, goodput: Mapping[str, float] | None) -> JobBill | None:
    """Return what a job has cost. Returns None if the job has used no GPUs.

    `text` is the output of `sacct` with a row for each start. `goodput` is the job's goodput (yard/run/goodput.py).
    """
    starts = job_costs(text, cluster)
    if not starts:
        return None
    usd = total(starts)
    hours = sum(start.gpu_hours for start in starts)
    bill = JobBill(job=starts[0].job, user=starts[0].user, name=starts[0].name, starts=len(starts), gpu_hours=hours,
                   usd=usd)  # fmt: skip
    if usd is None or goodput is None:
        return bill
    # Between two starts, a job holds no nodes.
    held = goodput["wall_s"] - goodput["waiting_s"]
    useful, redone, saving = (
        round(usd * goodput[key] / held, 2) if held > 0 else 0.0 for key in ("useful_s", "redone_s", "saving_s")
    )
    return replace(
        bill,
        steps=int(goodput["steps"]),
        usd_per_step=useful / goodput["steps"] if goodput["steps"] else None,
        redone_steps=int(goodput["redone_steps"]),
        useful_usd=useful,
        redone_usd=redone,
        saving_usd=saving,
        other_usd=round(usd - useful - redone - saving, 2),
    )


def bill_of(remote: Remote, job: Job, goodput: Mapping[str, float] | None) -> JobBill | None:
    """Return what a job has cost according to Slurm's accounting, or None if the job has used no GPUs."""
    return job_bill(remote.run(sacct(f"-D -j {job.id}")), remote.stack.cluster, goodput)


def show_job_bill(remote: Remote, job: Job, as_json: bool) -> None:
    """Print what a job has cost, for its useful steps and for lost time. Raises JobError if it has used no GPUs."""
    if remote.stack.cluster.scheduler != "slurm":
        raise JobError("without Slurm, the head does not record when jobs held GPUs")
    bill = bill_of(remote, job, goodputs_of(remote, [job]).get(str(job.id)))
    if bill is None:
        raise JobError(f"job {job.id} has used no GPUs, and only GPUs have a price for a job")
    if as_json:
        say_json(vars(bill))
        return
    say(f"job {bill.job} ({bill.name}) of {bill.user}: {_dollars(bill.usd)} for {bill.gpu_hours:.2f} GPU hours in "
        f"{counted(bill.starts, 'start')}")  # fmt: skip
    if bill.useful_usd is None:
        say("the job's program has recorded no steps, so the cost of a step is unknown (docs/jobs.md, goodput)")
        return
    each = "" if bill.usd_per_step is None else f"{counted(bill.steps, 'step')}, ${bill.usd_per_step:.4f} each"
    table(
        ("FOR", "COST", ""),
        [
            ("useful steps", _dollars(bill.useful_usd), each),
            ("repeated steps", _dollars(bill.redone_usd), counted(bill.redone_steps, "step")),
            ("checkpoints", _dollars(bill.saving_usd), ""),
            ("start-up and other work", _dollars(bill.other_usd), ""),
        ],
    )


def read_on_times(remote: Remote) -> tuple[Intervals, float]:
    """Return the head's record of on-times, and the head's time in seconds since 1970."""
    text, _, clock = remote.run(f"cat {_record(remote)}; echo {_SEPARATOR}; date +%s").partition(_SEPARATOR)
    return parse_on_times(text, float(clock)), float(clock)


def show_cost(remote: Remote, month: str, as_json: bool) -> None:
    """Print the cost of a month by day and part, its sum and, for the current month, a forecast."""
    (intervals, now), cluster = read_on_times(remote), remote.stack.cluster
    start, end = month_bounds(month)
    rows = costs(intervals, cluster, start, min(end, now))
    if as_json:
        say_json([vars(row) for row in rows])
        return
    shown = [(row.day, row.part, f"{row.hours:.2f}", _dollars(row.usd)) for row in rows]
    if cluster.prices is None:
        table(("DAY (UTC)", "PART", "HOURS"), [row[:3] for row in shown])
        say("the machines of this platform have no price")
        return
    table(("DAY (UTC)", "PART", "HOURS", "COST"), [*shown, ("", "", "", _dollars(total(rows)))])
    if start <= now < end:
        say(f"forecast for {month}: {_dollars(forecast(intervals, cluster, now))}")
    say(f"list prices. Not included: {', '.join((*cluster.prices.unpriced, *_NOT_INCLUDED))}")


def show_job_costs(remote: Remote, month: str, as_json: bool) -> None:
    """Print the cost of the jobs that ran in a month: a person's own ones, or everybody's for admins and operators."""
    start, end = (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%S}" for time in month_bounds(month))
    everybody = not remote.stack.login or remote.stack.is_admin
    options = f"-T -S {start} -E {end}{' -a' if everybody else ''}"
    rows = job_costs(remote.run(sacct(options)), remote.stack.cluster)
    if as_json:
        say_json([vars(row) for row in rows])
        return
    shown = [(str(row.job), row.user, row.name, f"{row.gpu_hours:.2f}", _dollars(row.usd)) for row in rows]
    table(("JOB", "USER", "NAME", "GPU HOURS", "COST"), [*shown, ("", "", "", "", _dollars(total(rows)))])
    say(
        "the price of a node is divided by its GPUs. Not included: idle GPUs, jobs without GPUs, the head, services, "
        "and what `yard cost` does not include"
    )


def _record(remote: Remote) -> str:
    if remote.stack.cluster.scheduler != "slurm":
        raise JobError("without Slurm, the head does not record when machines are on")
    return shlex.quote(f"{remote.stack.cluster.state_dir}/{ON_TIMES}")


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.2f}"
