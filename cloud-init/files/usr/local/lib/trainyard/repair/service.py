"""The service `trainyard-repair` on the head.

It holds spares back, sets lost workers down, records when nodes left service, starts and stops the machines of elastic
groups (power.py), and stops an idle cluster (sleep.py). While the month's cost limit is spent, it sets the partitions
down (budget.py). It ends jobs that do not use their GPUs (idle_jobs.py). With monitoring, it writes the cluster's
metrics (figures.py). The only programs that it runs are scontrol, squeue and scancel.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from health.slurm import SlurmNode, parse

from repair.budget import SPENT, Budget, Meter
from repair.figures import FILE, Figures
from repair.idle_jobs import IdleJobs, IdleLimit
from repair.partitions import Closed, write_atomically
from repair.power import BUSY, OFF, Elastic, Power, Reconciler
from repair.sleep import Sleep, SleepSettings
from trainyard.faults import (
    CLOSED,
    GONE,
    HEAD,
    HISTORY,
    NOTICES,
    ON_TIMES,
    SLEEP_REQUEST,
    SLEEPING,
    SLURMD,
    Change,
    is_epidemic,
    is_in_service,
    is_off,
    reason_for,
)

STATE = Path("/var/lib/trainyard")
GATE = "gate.lock"
"""While trainyard-gate holds this lock, the spares are free for its tasks, and no node is set down."""
INTERVAL_SECONDS = 3.0
QUIET_SECONDS = 15.0
"""How often Slurm's nodes are listed while every node answers and is usable, and no group has spares. On an emulated
head, a listing every three seconds used 8 % of a core (measured on 2026-11-23)."""
NO_SLURMD = reason_for(
    SLURMD, "the machine answers, but its slurmd does not: check its clock, munge and slurmd (yard doctor)"
)
KEPT = 50
"""The number of changes that are kept for each node."""
_SECONDS = 20
_NAME = re.compile(r"^NodeName=(\S+)")
_SPARES = "spares-"
"""A reservation's name consists of this prefix and the group's name."""
_LAST_BUSY = re.compile(r" LastBusyTime=(\d+)")
_RESERVATION = re.compile(rf"^ReservationName={_SPARES}(\S+) .* Nodes=(\S+)")
_EPIDEMIC_SECONDS = 60.0
"""Silent workers count as lost after this time, even if many workers are silent."""
_SLURMD_SECONDS = 60.0
"""The time after which a worker is drained if it answers but its slurmd does not. A working slurmd registers sooner
(health/slurm.py)."""
_ROUND_SECONDS = 10.0
"""The longest time that one round adds to a worker's silence, because the clock can jump after the head was frozen."""
_CONNECT_SECONDS = 3.0
_ANSWERS = (0, errno.ECONNREFUSED)
_FIELDS = 3
"""The number of fields in a line of ON_TIMES."""
_CLOSED_PORT = 9
"""The "discard" port. No program on a node listens on it or logs connections, and a refusal counts as an answer."""

History = Mapping[str, tuple[Change, ...]]
"""Mapping from node name to changes, oldest first."""


@dataclass(frozen=True)
class Node:
    """A worker in Slurm. `has_registered` is False while slurmctld waits for a registration of the worker's slurmd."""

    name: str
    slurm: SlurmNode
    has_registered: bool = True
    last_busy: float | None = None
    """The time at which the node last ran a job or became usable, in seconds since 1970. None if unknown."""

    @property
    def is_usable(self) -> bool:
        return is_in_service(self.slurm.state)

    @property
    def is_busy(self) -> bool:
        return not self.slurm.flags.isdisjoint(BUSY)

    @property
    def responds(self) -> bool:
        return "NOT_RESPONDING" not in self.slurm.flags

    @property
    def is_off(self) -> bool:
        return is_off(self.slurm.state)


@dataclass(frozen=True)
class Group:
    """A node group. `nodes` is a mapping from worker name to address."""

    name: str
    spares: int
    nodes: Mapping[str, str]
    elastic: Elastic | None = None


@dataclass(frozen=True)
class Site:
    """The content of repair.json. A node counts as lost if it has not answered for more than `silent_seconds`.

    The machine of an elastic node must register within `start_seconds`. `channel` describes how machines are started.
    `sleep` is None if the cluster never stops.
    """

    silent_seconds: float
    groups: tuple[Group, ...]
    start_seconds: float = 0.0
    channel: Mapping[str, str] = field(default_factory=dict)
    budget: Budget | None = None
    sleep: SleepSettings | None = None
    idle_gpu: IdleLimit | None = None
    prices: Mapping[str, float] | None = None
    """The list prices for the cluster's metrics, or None without monitoring."""

    @property
    def addresses(self) -> dict[str, str]:
        return {name: address for group in self.groups for name, address in group.nodes.items()}


def read_site(text: str) -> Site:
    """Parse repair.json, which is part of the hand-over."""
    found = json.loads(text)
    groups = tuple(_group(name, row) for name, row in found["groups"].items())
    power = found.get("power", {})
    return Site(
        found["silent_seconds"],
        groups,
        power.get("start_seconds", 0.0),
        power.get("channel", {}),
        Budget(**found["budget"]) if "budget" in found else None,
        SleepSettings(**power["sleep"]) if "sleep" in power else None,
        IdleLimit(**found["idle_gpu"]) if "idle_gpu" in found else None,
        found["metrics"]["usd_per_hour"] if "metrics" in found else None,
    )


def _group(name: str, row: Mapping[str, Any]) -> Group:
    settings = row.get("elastic")
    elastic = Elastic(tuple(row["nodes"]), settings["min"], settings["idle_seconds"]) if settings else None
    return Group(name, row["spares"], row["nodes"], elastic)


def parse_nodes(text: str) -> Iterator[Node]:
    """Yield the nodes in the output of `scontrol -o show node`."""
    for line in text.splitlines():
        name, state = _NAME.match(line), parse(line)
        if name is not None and state is not None:
            busy = _LAST_BUSY.search(line)
            yield Node(name[1], state, " BootTime=None" not in line, float(busy[1]) if busy else None)


def with_changes(history: History, nodes: Iterable[Node], now: float) -> dict[str, tuple[Change, ...]]:
    """Return the history with a new entry for each node whose reason differs from its last entry."""
    found = dict(history)
    for node in nodes:
        unknown = node.slurm.state.lower() if node.responds else "not responding"
        reason = "" if node.is_usable else node.slurm.reason or unknown
        changes = found.get(node.name, ())
        if reason != (changes[-1].reason if changes else ""):
            found[node.name] = (*changes, Change(now, reason))[-KEPT:]
    return found


def load_history(path: Path) -> dict[str, tuple[Change, ...]]:
    """Return the stored history, or an empty one if it cannot be read."""
    try:
        rows = json.loads(path.read_text())["history"]
        return {name: tuple(Change(**change) for change in changes) for name, changes in rows.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save_history(path: Path, history: History) -> None:
    """Store the history. Every user may read it, because Slurm shows the same reasons to every user."""
    rows = {name: [asdict(change) for change in changes] for name, changes in history.items()}
    write_atomically(path, json.dumps({"history": rows}) + "\n")


class OnTimes:
    """The record of when machines were on. It contains only changes, so a time without this service counts as before.

    Machines that are not in elastic groups count as on while they are in the cluster.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            # The head crashed while it was writing the last line.
            path.write_text(complete)
        rows = (row.split(" ") for row in complete.splitlines())
        self._states = {row[1]: row[2] for row in rows if len(row) == _FIELDS}

    def record(self, states: Mapping[str, str], removed: Iterable[str], wall: float) -> None:
        """Append the machines whose state has changed. `removed` contains machines that no longer exist."""
        found = {**states, **{name: "off" for name in sorted(removed) if self._states.get(name) == "on"}}
        changed = {name: state for name, state in found.items() if self._states.get(name) != state}
        if not changed:
            return
        with self._path.open("a") as file:
            file.writelines(f"{wall:.0f} {name} {state}\n" for name, state in changed.items())
        self._path.chmod(0o644)
        self._states |= changed

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._states)


def choose_spares(group: Group, nodes: Mapping[str, Node], held: Collection[str]) -> tuple[str, ...]:
    """Return the nodes to hold back, sorted by name.

    Each unusable node counts as a spare, so that the number of nodes for jobs stays the same. Existing spares are kept,
    and idle nodes are preferred as new spares.
    """
    members = [nodes[name] for name in group.nodes if name in nodes]
    usable = [node for node in members if node.is_usable]
    wanted = max(0, group.spares - (len(group.nodes) - len(usable)))
    ordered = sorted(reversed(usable), key=lambda node: (node.name not in held, node.is_busy))
    return tuple(sorted(node.name for node in ordered[:wanted]))


def reservation_changes(group: str, wanted: Collection[str], held: Collection[str] | None) -> Iterator[list[str]]:
    """Yield the scontrol arguments that change a group's reservation. `held` is None if there is no reservation.

    Slurm neither moves nor refills a reservation with named nodes, so the service changes these nodes itself. With
    IGNORE_JOBS, a reservation can contain busy nodes, which become spares when their jobs end (update_resv and
    _job_overlap in slurmctld/reservation.c of Slurm 22.05.8, 23.11.4 and 24.11.5, and scontrol(1), "RESERVATIONS"; read
    2026-11-22). With NodeCnt and REPLACE_DOWN, in contrast, Slurm would replace lost spares with nodes that are running
    jobs. Slurm ends a reservation with duration=UNLIMITED after a year, and the service then creates a new one.
    """
    name, nodes = f"reservationname={_SPARES}{group}", f"nodes={','.join(wanted)}"
    if held is None and wanted:
        yield ["create", "reservation", name, nodes, "starttime=now", "duration=UNLIMITED", "users=root",
               "flags=IGNORE_JOBS"]  # fmt: skip
    elif held is not None and not wanted:
        yield ["delete", name]
    elif held is not None and set(held) != set(wanted):
        yield ["update", name, nodes]


@dataclass
class Watch:
    """How long each worker has been silent. All times are in seconds of a monotonic clock.

    Time counts only while other workers answer. If no worker answers, the head's own network has probably failed, and
    jobs must continue. A worker that has never answered is not lost, because a firewall may drop the packets.
    """

    silent_seconds: float
    heard: set[str] = field(default_factory=set)
    """The workers that have answered."""
    silence: dict[str, float] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Workers that Slurm had set down while they were silent, and that have not answered since."""
    unregistered: dict[str, float] = field(default_factory=dict)
    """Mapping from each worker that answers without a responding slurmd to the time at which this began."""
    last: float | None = None

    def record(self, names: Collection[str], answers: Collection[str], now: float) -> None:
        """Record which workers have answered in a round."""
        passed = min(now - self.last, _ROUND_SECONDS) if self.last is not None else 0.0
        self.last = now
        self.heard.update(answers)
        self.down.difference_update(answers)
        self.silence = {name: self.silence.get(name, 0.0) + passed for name in names if answers and name not in answers}

    def lost(self, nodes: Mapping[str, Node]) -> Iterator[list[str]]:
        """Yield the scontrol arguments that set lost workers down, so that Slurm requeues their jobs.

        If many workers are silent, the network has probably failed for a short time, so they are set down later. A
        worker that is already drained keeps its reason.
        """
        silent = {name: seconds for name, seconds in self.silence.items() if seconds > self.silent_seconds}
        limit = _EPIDEMIC_SECONDS if is_epidemic(len(silent), len(nodes)) else 0.0
        for name, node in nodes.items():
            if name not in silent:
                continue
            if "DOWN" in node.slurm.flags:
                self.down.add(name)
                continue
            if name in self.down and node.responds:
                # The worker returned to service without ever answering, so a firewall drops the packets.
                self.heard.discard(name)
            # If a worker was lost before this service started, Slurm knows that it does not respond.
            is_known = name in self.heard or not node.responds
            is_drained = "DRAIN" in node.slurm.flags
            if not is_known or (is_drained and not node.is_busy) or silent[name] <= limit:
                continue
            gone = reason_for(GONE, f"no answer for {self.silent_seconds:.0f} s")
            yield ["update", f"nodename={name}", "state=down", f"reason={node.slurm.reason if is_drained else gone}"]

    def without_slurmd(self, nodes: Mapping[str, Node], answers: Collection[str], now: float) -> Iterator[list[str]]:
        """Yield the scontrol arguments that drain each worker whose machine answers although its slurmd does not.

        Such a worker may be unable to report the cause itself, for example because munge rejects its clock.
        """
        found = {
            name
            for name, node in nodes.items()
            if name in answers
            and node.has_registered
            and not node.responds
            and node.slurm.flags.isdisjoint({"DOWN", "DRAIN"})
        }
        self.unregistered = {name: self.unregistered.get(name, now) for name in found}
        for name, since in self.unregistered.items():
            if now - since > _SLURMD_SECONDS:
                yield ["update", f"nodename={name}", "state=drain", f"reason={NO_SLURMD}"]


def answering(addresses: Mapping[str, str]) -> set[str]:
    """Return the workers that accept or refuse a connection."""
    found = set()
    with selectors.DefaultSelector() as waiting, ExitStack() as sockets:
        for name, address in addresses.items():
            connection = sockets.enter_context(socket.socket())
            connection.setblocking(False)
            try:
                code = connection.connect_ex((address, _CLOSED_PORT))
            except OSError:
                continue
            if code == errno.EINPROGRESS:
                waiting.register(connection, selectors.EVENT_WRITE, (name, connection))
            elif code in _ANSWERS:
                found.add(name)
        end = time.monotonic() + _CONNECT_SECONDS
        while waiting.get_map() and (seconds := end - time.monotonic()) > 0:
            for key, _ in waiting.select(seconds):
                name, connection = key.data
                waiting.unregister(connection)
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    found.add(name)
    return found


def scontrol(*arguments: str) -> str | None:
    """Run scontrol as `_run` does."""
    return _run("scontrol", *arguments)


def squeue(*arguments: str) -> str | None:
    """Run squeue as `_run` does."""
    return _run("squeue", *arguments)


def scancel(*arguments: str) -> str | None:
    """Run scancel as `_run` does."""
    return _run("scancel", *arguments)


def _run(program: str, *arguments: str) -> str | None:
    """Run a program of Slurm. Return its output, or None if it timed out or failed. The journal contains its error.

    All times in the output are in seconds since 1970. A job's name can contain bytes that are not UTF-8.
    """
    environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.stderr.write(f"{program} {' '.join(arguments)}: {done.stdout}{done.stderr}\n")
        return None
    return done.stdout


@dataclass
class Service:
    """The service. Tests replace its functions."""

    site: Site
    state: Path = STATE
    control: Callable[..., str | None] = scontrol
    queue: Callable[..., str | None] = squeue
    cancel: Callable[..., str | None] = scancel
    answering: Callable[[Mapping[str, str]], set[str]] = answering
    power: Power | None = None
    """Starts and stops machines, or None if no group is elastic."""
    watch: Watch = field(init=False)
    reconciler: Reconciler | None = field(init=False)
    sleep: Sleep | None = field(init=False)
    has_spares: bool = field(init=False)
    changes: dict[str, tuple[Change, ...]] = field(init=False)
    on_times: OnTimes = field(init=False)
    closed: Closed = field(init=False)
    meter: Meter | None = field(init=False)
    idle_jobs: IdleJobs | None = field(init=False)
    figures: Figures | None = field(init=False)
    notices: str = field(init=False)
    """The content of NOTICES."""
    listed: float | None = None
    """The time of the last listing, or None if any node was missing or unusable."""
    reservations_checked: bool = False
    off: frozenset[str] = frozenset()
    """The nodes that Slurm has powered down or is powering up. They do not have to answer."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.site.silent_seconds)
        self.has_spares = any(group.spares for group in self.site.groups)
        elastic = tuple(group.elastic for group in self.site.groups if group.elastic is not None)
        self.reconciler = None
        if elastic and self.power is not None:
            self.reconciler = Reconciler(elastic, self.power, self.control, self.site.start_seconds)
        self.sleep = None
        if self.site.sleep is not None and self.reconciler is not None:
            self.sleep = Sleep(self.site.sleep, self.state / SLEEP_REQUEST, self.queue, self.control, self.reconciler)
        self.changes = load_history(self.state / HISTORY)
        self.on_times = OnTimes(self.state / ON_TIMES)
        self.closed = Closed(self.state / CLOSED, self.control)
        budget, shown = self.site.budget, self.state / NOTICES
        self.meter = Meter(budget, self.state / ON_TIMES, self.control, self.queue) if budget is not None else None
        limit = self.site.idle_gpu
        self.idle_jobs = IdleJobs(limit, self.control, self.queue, self.cancel) if limit is not None else None
        self.figures = None
        if self.site.prices is not None:
            monthly = budget.usd_per_month if budget is not None else None
            record = self.state / ON_TIMES
            self.figures = Figures(self.state / FILE, record, self.site.prices, monthly, self.queue)
        self.notices = shown.read_text() if shown.exists() else ""

    def run_once(self, now: float, wall: float) -> None:
        """Check all nodes once. `now` is a monotonic time, and `wall` is in seconds since 1970."""
        self._close_partitions(now, wall)
        awake = {name: address for name, address in self.site.addresses.items() if name not in self.off}
        answers = self.answering(awake)
        self.watch.record(awake, answers, now)
        if self._is_quiet(answers, now):
            return
        self.listed = None
        shown = self.control("-o", "show", "node")
        if shown is None:
            return
        if self.idle_jobs is not None:
            self.idle_jobs.run_once(shown, now, wall)
        nodes = {node.name: node for node in parse_nodes(shown) if node.name in self.site.addresses}
        self.off = frozenset(name for name, node in nodes.items() if node.is_off)
        if len(nodes) == len(self.site.addresses) and all(node.is_usable for node in nodes.values()):
            self.listed = now
        is_gated = self._is_gated()
        # During the gate, a node that does not respond is not faulty, because `pulumi up` creates or replaces nodes.
        if not is_gated:
            self._record(nodes, wall)
            on = {name: node for name, node in nodes.items() if name not in self.off}
            for change in (*self.watch.lost(on), *self.watch.without_slurmd(on, answers, now)):
                self.control(*change)
        self._hold_spares(nodes, release=is_gated)
        if self.reconciler is not None:
            idle = {name: wall - node.last_busy for name, node in nodes.items() if node.last_busy is not None}
            found = {name: node.slurm for name, node in nodes.items()}
            self.reconciler.run_once(found, idle, now, gated=is_gated)
            if self.sleep is not None:
                self.sleep.run_once(found, now, wall, gated=is_gated)
        self._record_machines(wall)
        if self.figures is not None:
            self.figures.run_once({name: node.slurm for name, node in nodes.items()}, shown, now, wall)

    def _close_partitions(self, now: float, wall: float) -> None:
        """Set partitions down or up again, and tell users why."""
        wanted: dict[str, str] = {}
        notices: list[str] = []
        if self.meter is not None:
            # The other groups cost the same without jobs.
            self.meter.run_once([group.name for group in self.site.groups if group.elastic is not None], now, wall)
            notices += filter(None, [self.meter.notice])
            wanted |= dict.fromkeys((group.name for group in self.site.groups if self.meter.is_spent), SPENT)
        if self.sleep is not None and self.sleep.is_closing:
            notices.append(SLEEPING)
            wanted |= dict.fromkeys((group.name for group in self.site.groups), SLEEPING)
        if self.idle_jobs is not None:
            notices += filter(None, [self.idle_jobs.notice])
        self.closed.keep(wanted)
        if self.reconciler is not None:
            self.reconciler.closed = frozenset(
                name for group in self.site.groups if group.name in wanted for name in group.nodes
            )
        text = "".join(f"{notice}\n" for notice in notices)
        if text != self.notices:
            write_atomically(self.state / NOTICES, text)
            self.notices = text

    def _record_machines(self, wall: float) -> None:
        known: Mapping[str, str] = {}
        elastic: Collection[str] = ()
        if self.reconciler is not None:
            known, elastic = self.reconciler.known, self.reconciler.names
        states = {name: "on" for name in (HEAD, *self.site.addresses) if name not in elastic}
        if self.sleep is not None and self.sleep.stopping_since is not None:
            states[HEAD] = OFF
        # A machine that is starting or stopping already or still costs money.
        states |= {name: "off" if state == OFF else "on" for name, state in known.items()}
        self.on_times.record(states, self.on_times.names - {HEAD, *self.site.addresses}, wall)

    def _is_quiet(self, answers: set[str], now: float) -> bool:
        """Return whether listing Slurm's nodes can be skipped now."""
        if self.has_spares or self.reconciler is not None or answers != self.site.addresses.keys():
            return False
        return self.listed is not None and now - self.listed < QUIET_SECONDS

    def _record(self, nodes: Mapping[str, Node], wall: float) -> None:
        found = with_changes(self.changes, nodes.values(), wall)
        if found != self.changes:
            self.changes = found
            save_history(self.state / HISTORY, found)

    def _hold_spares(self, nodes: Mapping[str, Node], *, release: bool) -> None:
        # Without spares, the service only deletes an earlier configuration's reservations, and only once.
        if self.reservations_checked and not self.has_spares:
            return
        listed = self.control("-o", "show", "reservation")
        if listed is None:
            return
        self.reservations_checked = True
        held = {found[1]: found[2] for line in listed.splitlines() if (found := _RESERVATION.match(line))}
        groups = {group.name: group for group in self.site.groups}
        for name in groups | held:
            names = (self.control("show", "hostnames", held[name]) or "").split() if name in held else None
            is_wanted = name in groups and not release
            wanted = choose_spares(groups[name], nodes, names or ()) if is_wanted else ()
            for change in reservation_changes(name, wanted, names):
                self.control(*change)

    def _is_gated(self) -> bool:
        """Return whether trainyard-gate is running."""
        try:
            file = os.open(self.state / GATE, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False


def main() -> None:
    """Run until the process ends."""
    site = read_site((STATE / "handover" / "repair.json").read_text())
    power = None
    if site.channel:
        # Without elastic groups, the imports of this module would delay the start by 0.3 s on an emulated machine.
        from repair.channels import channel  # noqa: PLC0415

        power = channel(site.channel)
    service = Service(site, power=power)
    while True:
        service.run_once(time.monotonic(), time.time())
        time.sleep(INTERVAL_SECONDS)
