"""`yard top`: shows nodes, GPUs and jobs, and refreshes them until the user presses q.

The facts come from Slurm or the runner, and from the records in the run folders of the user's own jobs (flight.py). All
calls share one SSH connection. If a call fails, the last facts remain on the screen.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ClusterError
from trainyard.outputs import Cluster
from trainyard.printable import printable
from yard.run import flight
from yard.run.jobs import COLOURS, expand, node_rows, show_log
from yard.run.queue import Job, explain
from yard.run.schedulers import scheduler_of
from yard.show import duration, say, say_json, warn
from yard.stack.remote import Remote

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_KEYS = "q quit · up, down select · l log · s sort by {} · m my jobs · / filter"
_NAME = 20
"""The most characters of a job's name."""
_LARGEST = 1e18
_ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
SORTS: Mapping[str, Callable[[Entry], tuple[Any, ...]]] = {
    "number": lambda entry: (-entry.job.id,),
    "user": lambda entry: (entry.job.user, -entry.job.id),
    "elapsed": lambda entry: (-entry.job.elapsed_s, -entry.job.id),
    "GPU use": lambda entry: (entry.gpu_percent is None, entry.gpu_percent or 0.0, -entry.job.id),
}
"""Mapping from the name of an order to its key. With "GPU use", jobs that use their GPUs least come first."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a job does now. Unknown values are None.

    `step` is the last completed step, `steps_per_s`, `tokens_per_s` and `loss` are from the last record of the job's
    program, and `left_s` is the estimated time until its last step. `usd` is the cost of this start at list prices.
    """

    step: int | None = None
    steps_per_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    gpu_percent: float | None = None
    left_s: float | None = None
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Entry(Progress):
    """A job and its progress."""

    job: Job


@dataclass(frozen=True, kw_only=True)
class NodeUse:
    """A host, and the mean use of its GPUs if one of the user's jobs runs there.

    `cpu_percent` and `gpu_percent` are in percent, `memory_mib` and `watts` are sums over the job's GPUs, and
    `received_mb_s` and `sent_mb_s` are sums over the network cards in 10^6 bytes per second.
    """

    name: str
    group: str
    state: str
    why: str
    gpus: int
    cpu_percent: float | None = None
    gpu_percent: float | None = None
    memory_mib: float | None = None
    watts: float | None = None
    received_mb_s: float | None = None
    sent_mb_s: float | None = None
    job: int | None = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the screen shows. `time` is in seconds since 1970."""

    time: float
    cluster: str
    user: str
    nodes: Sequence[NodeUse]
    jobs: Sequence[Entry]
    notices: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the facts in the format that `--json` prints."""
        names = [name.name for name in fields(Progress)]
        jobs = [{name: getattr(entry, name) for name in names} | entry.job.as_json() for entry in self.jobs]
        nodes = [asdict(node) for node in self.nodes]
        return {"time": self.time, "nodes": nodes, "jobs": jobs, "notices": list(self.notices)}


@dataclass(frozen=True, kw_only=True)
class View:
    """What the user has chosen. `typing` is set while the user enters the filter."""

    sort: str = next(iter(SORTS))
    mine: bool = False
    filter: str = ""
    typing: bool = False
    selected: int | None = None
    """The number of the selected job."""
    problem: str = ""
    """Why the facts are old."""

    def chosen(self, facts: Facts) -> list[Entry]:
        """Return the jobs to show, in the chosen order."""
        found = [
            entry
            for entry in facts.jobs
            if (not self.mine or entry.job.user == facts.user)
            and self.filter.lower() in f"{entry.job.id} {entry.job.name} {entry.job.user} {entry.job.state}".lower()
        ]
        return sorted(found, key=SORTS[self.sort])


def press(view: View, key: str, facts: Facts) -> View:
    """Return the view after a key. The keys `q` and `l` have no effect here."""
    if view.typing:
        return _type(view, key)
    match key:
        case "s":
            names = list(SORTS)
            return replace(view, sort=names[(names.index(view.sort) + 1) % len(names)])
        case "m":
            return replace(view, mine=not view.mine)
        case "/":
            return replace(view, typing=True, filter="")
        case "up" | "down":
            return replace(
                view, selected=_neighbour([entry.job.id for entry in view.chosen(facts)], view.selected, key)
            )
    return view


def _type(view: View, key: str) -> View:
    """Change the filter. Return ends the input, and Escape also removes the filter."""
    if key in {"\r", "\n", "\x1b"}:
        return replace(view, typing=False, filter="" if key == "\x1b" else view.filter)
    if key in {"\x7f", "\b"}:
        return replace(view, filter=view.filter[:-1])
    return replace(view, filter=view.filter + key) if key.isprintable() and len(key) == 1 else view


def _neighbour(numbers: Sequence[int], selected: int | None, key: str) -> int | None:
    if selected not in numbers:
        return numbers[0] if numbers else None
    at = numbers.index(selected) + (1 if key == "down" else -1)
    return numbers[max(0, min(at, len(numbers) - 1))]


def read_facts(remote: Remote) -> Facts:
    """Read the state of the cluster. Raises ClusterError if the head does not answer."""
    stack = remote.stack
    jobs = [job for job in scheduler_of(stack.cluster.scheduler).recent(remote, 1) if not job.ended]
    notices = remote.notices
    rows = node_rows(remote)
    # Only the user's own run folders are read, because other users choose their jobs' working directories.
    own = [job for job in jobs if job.state == "RUNNING" and job.run_dir.startswith(f"{stack.jobs_path}/")]
    records: Mapping[str, Any] = {}
    if own:
        words = ["python3", "-", "now", *(f"{job.id}={job.run_dir}" for job in own)]
        records = json.loads(remote.run(shlex.join(words), stdin=Path(flight.__file__).read_bytes()))
    return Facts(
        time=time.time(),
        cluster=stack.cluster.name,
        user=stack.user,
        nodes=node_uses(jobs, rows, records),
        jobs=[entry_of(job, stack.cluster, records.get(str(job.id), {})) for job in jobs],
        notices=notices,
    )


def node_uses(jobs: Sequence[Job], rows: Sequence[Mapping[str, Any]], records: Mapping[str, Any]) -> list[NodeUse]:
    """Return the nodes with their jobs, and their use if `records` contains a sample.

    `records` maps job numbers to the documents of flight.py.
    """
    on = {name: job.id for job in jobs if job.state == "RUNNING" for name in expand(job.node_list)}
    nodes = []
    for row in rows:
        number = on.get(row["name"])
        sample = records.get(str(number), {}).get("nodes", {}).get(row["name"])
        kept = {name: row[name] for name in ("name", "group", "state", "why", "gpus")}
        nodes.append(NodeUse(**kept, job=number, **(_use(sample) if sample else {})))
    return nodes


def _use(sample: Sequence[Any]) -> dict[str, Any]:
    """Return the use of a node from a sample of flight.py, whose values can be changed by the job's owner.

    A GPU that does not answer has no values, because nvidia-smi prints a message in its place.
    """
    _, cpu, gpus, network = (*sample, *[None] * 4)[:4]
    rows = [gpu for gpu in gpus if isinstance(gpu, list)] if isinstance(gpus, list) else []

    def column(at: int) -> list[float]:
        return [value for row in rows if (value := _number(*row[at : at + 1])) is not None]

    percents, watts, memory = column(0), column(1), column(5)
    received, sent = map(_number, (*network, None, None)[:2]) if isinstance(network, list) else (None, None)
    return {
        "cpu_percent": _number(cpu),
        "received_mb_s": received,
        "sent_mb_s": sent,
        "gpu_percent": sum(percents) / len(percents) if percents else None,
        "watts": sum(watts) if watts else None,
        "memory_mib": sum(memory) if memory else None,
    }


def _number(value: Any = None) -> float | None:
    """Return a number, or None if it is missing, of a wrong type or not usual, such as the loss NaN."""
    valid = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    return float(value) if valid else None


def entry_of(job: Job, cluster: Cluster, record: Mapping[str, Any]) -> Entry:
    """Return a job's entry. `record` is the job's document of flight.py, or empty."""
    row = record.get("step") or {}
    step, ms, last = (_number(row.get(name)) for name in ("step", "step_ms", "last_step"))
    uses = [_use(sample)["gpu_percent"] for sample in record.get("nodes", {}).values()]
    percents = [use for use in uses if use is not None]
    price = (cluster.prices.nodes if cluster.prices else {}).get(job.group)
    return Entry(
        job=job,
        step=None if step is None else int(step),
        steps_per_s=_number(1e3 / ms if ms else None),
        loss=_number(row.get("loss")),
        tokens_per_s=_number(row.get("tokens_per_s")),
        gpu_percent=sum(percents) / len(percents) if percents else None,
        left_s=_number((last - step) * ms / 1e3 if last is not None and step is not None and ms else None),
        usd=None if price is None else price * job.nodes * job.elapsed_s / 3600,
    )


def screen(facts: Facts, view: View, height: int) -> Group:
    """Return the screen. With too few rows, the nodes and jobs that do not fit are counted in the last line."""
    from rich.console import Group  # noqa: PLC0415  (the import takes 60 ms)
    from rich.text import Text  # noqa: PLC0415

    jobs = view.chosen(facts)
    workers = [node for node in facts.nodes if node.group]
    in_use = sum(node.gpus for node in workers if node.job is not None)
    clock = f"{datetime.fromtimestamp(facts.time).astimezone():%H:%M:%S}"
    title = f"{facts.cluster} · {clock} · {in_use} of {sum(node.gpus for node in workers)} GPUs allocated · "
    title += f"{sum(entry.job.state == 'RUNNING' for entry in facts.jobs)} running, "
    title += f"{sum(entry.job.state == 'PENDING' for entry in facts.jobs)} waiting"
    notes = [*facts.notices, *([f"no answer since {clock}: {view.problem}"] if view.problem else [])]
    names = list(SORTS)
    keys = _KEYS.format(names[(names.index(view.sort) + 1) % len(names)])
    foot = f"filter: {view.filter}_" if view.typing else keys + (f" · filter: {view.filter}" if view.filter else "")
    # Two headers, the title, an empty line and the foot.
    space = max(2, height - 5 - len(notes))
    for_jobs = min(len(jobs), max(space // 2, space - len(workers)))
    shown, listed = workers[: max(1, space - for_jobs)], jobs[:for_jobs]
    if left := len(workers) - len(shown) + len(jobs) - len(listed):
        foot = f"{left} rows do not fit · {foot}"
    return Group(
        Text(title, style="bold", no_wrap=True, overflow="ellipsis"),
        *(Text(printable(note), style="yellow", no_wrap=True, overflow="ellipsis") for note in notes),
        _node_table(shown),
        Text(),
        _job_table(listed, view.selected, with_users=len({entry.job.user for entry in facts.jobs}) > 1)
        if facts.jobs
        else Text("no jobs; `yard submit hello` starts one"),
        Text(printable(foot), style="dim", no_wrap=True, overflow="ellipsis"),
    )


def _node_table(nodes: Sequence[NodeUse]) -> Table:
    rows = [
        (
            node.name,
            node.group,
            node.state,
            _percent(node.cpu_percent),
            _bar(node.gpu_percent) if node.gpus else "",
            "" if node.memory_mib is None else f"{node.memory_mib / 1024:.0f} GiB",
            "" if node.watts is None else f"{node.watts:.0f} W",
            "" if node.sent_mb_s is None else f"{_short(node.sent_mb_s * 1e6)}B/s",
            node.why or ("" if node.job is None else f"job {node.job}"),
        )
        for node in nodes
    ]
    return _table(("NODE", "GROUP", "STATE", "CPU", "GPUS", "MEMORY", "POWER", "SENDS", ""), rows)


def _job_table(jobs: Sequence[Entry], selected: int | None, *, with_users: bool) -> Table:
    rows = []
    for entry in jobs:
        job = entry.job
        rows.append(
            (
                f"{'>' if job.id == selected else ' '}{job.id}",
                *([job.user] if with_users else []),
                job.name if len(job.name) <= _NAME else f"{job.name[: _NAME - 1]}…",
                job.state,
                str(job.nodes),
                duration(job.elapsed_s),
                _percent(entry.gpu_percent),
                "" if entry.usd is None else f"${entry.usd:.2f}",
                _progress(entry) if job.state == "RUNNING" else explain(job),
            )
        )
    owner = ("USER",) if with_users else ()
    return _table((" JOB", *owner, "NAME", "STATE", "NODES", "TIME", "GPU", "COST", "PROGRESS"), rows)


def _progress(entry: Entry) -> str:
    speed = "" if entry.steps_per_s is None else f"{entry.steps_per_s:.3g} steps/s"
    if entry.tokens_per_s is not None:
        speed = f"{_short(entry.tokens_per_s)} tokens/s"
    parts = (
        "" if entry.step is None else f"step {entry.step}",
        "" if entry.loss is None else f"loss {entry.loss:.4g}",
        "" if entry.left_s is None else f"{duration(round(entry.left_s))} left",
        speed,
    )
    return ", ".join(filter(None, parts))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without the columns that have no content. On a narrow screen, only the last column is cut off."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [[printable(cell) for cell in row] for row in rows]
    kept = [at for at in range(len(columns)) if at < 2 or any(row[at] for row in cells)]  # noqa: PLR2004
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for at in kept:
        width = max(len(text) for text in (columns[at], *(row[at] for row in cells)))
        least = None if at == kept[-1] else width
        drawn.add_column(columns[at], no_wrap=True, overflow="ellipsis", min_width=least)
    for row in cells:
        style = "reverse" if row[0].startswith(">") else ""
        drawn.add_row(*(Text(row[at], style=COLOURS.get(row[at], "")) for at in kept), style=style)
    return drawn


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _bar(value: float | None) -> str:
    """Return for example "######---- 62 %", which needs no colours."""
    if value is None:
        return ""
    full = max(0, min(10, round(value / 10)))
    return f"{'#' * full}{'-' * (10 - full)} {value:.0f} %"


def _short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


@dataclass
class _Reader:
    """Reads the facts in a thread, so that keys have an effect while the head does not answer."""

    remote: Remote
    interval: float
    facts: Facts | None = None
    error: ClusterError | None = None
    thread: threading.Thread | None = None
    due: float = 0.0
    changed: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> None:
        """Begin to read if the interval has passed."""
        if (self.thread is None or not self.thread.is_alive()) and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.interval
            self.thread = threading.Thread(target=self._read, daemon=True)
            self.thread.start()

    def _read(self) -> None:
        try:
            self.facts, self.error = read_facts(self.remote), None
        except ClusterError as error:
            self.error = error
        self.changed.set()


def top(remote: Remote, interval: float, as_json: bool) -> None:
    """Show the cluster until the user presses q or Ctrl-C. Without a terminal, print one screen.

    Raises ClusterError if the head does not answer at the start.
    """
    facts = read_facts(remote)
    if as_json:
        say_json(facts.as_json())
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_once(facts)
        return
    reader = _Reader(remote, interval, facts, due=time.monotonic() + interval)
    view, job = View(), None
    while (job := _show(reader, view)) is not None:
        view = job[1]
        _page(remote, job[0])


def _print_once(facts: Facts) -> None:
    from yard.show import console  # noqa: PLC0415

    console().print(screen(facts, View(), height=10_000))


def _page(remote: Remote, job: int) -> None:
    """Print a job's log, and wait for a key."""
    try:
        show_log(remote, job, 0, as_json=False)
    except ClusterError as error:
        warn(str(error))
    say("-- press a key to return --")
    with _keys():
        os.read(0, 16)


def _show(reader: _Reader, view: View) -> tuple[int, View] | None:
    """Show the screen until the user quits, or asks for a log: then return the job's number and the view."""
    from rich.live import Live  # noqa: PLC0415

    from yard.show import console  # noqa: PLC0415

    assert reader.facts is not None  # noqa: S101  (for the type checker)
    out = console()
    with _keys(), Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            view = replace(view, problem=str(reader.error) if reader.error else "")
            live.update(screen(reader.facts, view, out.height), refresh=True)
            for key in _wait(reader):
                if key == "q" and not view.typing:
                    return None
                if key == "l" and not view.typing and view.selected is not None:
                    return view.selected, view
                view = press(view, key, reader.facts)


def _wait(reader: _Reader) -> Iterator[str]:
    """Wait until there are new facts or keys, and yield the keys."""
    while True:
        reader.poll()
        if select.select([0], [], [], 0.2)[0]:
            data = os.read(0, 64)
            if data in _ESCAPES:
                yield _ESCAPES[data]
            else:
                yield from data.decode(errors="ignore")
            return
        if reader.changed.is_set():
            reader.changed.clear()
            return


@contextmanager
def _keys() -> Iterator[None]:
    """Read keys without waiting for Return, and restore the terminal at the end."""
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
