"""Elastic nodes: the repair service with a model of slurmctld's power saving, and machines that can fail.

The model follows slurmctld/power_save.c and node_mgr.c of Slurm 24.11.5. tests/integration/test_elastic.py runs the
real slurmctld.
"""

from __future__ import annotations

import fcntl
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from health.slurm import SlurmNode, may_return
from repair.power import CHANGING, HOLD_SECONDS, OFF, ON, Elastic, PowerError, RefusedError
from repair.service import Group, Service, Site

from trainyard.faults import HISTORY, ON_TIMES

NAMES = ("a-0", "a-1", "a-2")
ADDRESSES = {name: f"10.0.0.{index}" for index, name in enumerate(NAMES, 1)}
IDLE_SECONDS, START_SECONDS = 120.0, 200.0
BOOT_SECONDS, STOP_SECONDS, SUSPEND_SECONDS = 40.0, 15.0, 60.0
GRACE_SECONDS = 300.0
STEP_SECONDS = 3


@dataclass
class Job:
    """A job for some nodes. `executions` counts how often its ranks began to run."""

    nodes: int
    seconds: float
    state: str = "PENDING"
    on: tuple[str, ...] = ()
    left: float = 0.0
    executions: int = 0


@dataclass
class Machines:
    """The platform: machines that start and stop slowly, cannot always start, and whose calls can fail."""

    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, ON))
    booted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    """Mapping from machine to the time at which its slurmd starts. Machines that are off are missing."""
    ends: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    full: bool = False
    is_slow_to_refuse: bool = False
    """Whether a refusal is reported later, as clouds do."""
    broken: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def _call(self) -> None:
        if self.broken:
            raise PowerError("the API does not answer")

    def look_up(self, names: Collection[str]) -> Mapping[str, str]:
        self._call()
        return {name: self.states[name] for name in names}

    def start(self, name: str) -> None:
        self._call()
        self.calls.append((ON, name))
        assert self.states[name] == OFF, f"{name} is {self.states[name]}"
        if self.full and not self.is_slow_to_refuse:
            raise RefusedError("no capacity")
        if self.full:
            self.refused[name] = "no capacity"
        else:
            self.turn_on(name)

    def stop(self, name: str) -> None:
        self._call()
        self.calls.append((OFF, name))
        self.states[name], self.ends[name] = CHANGING, self.now + STOP_SECONDS

    def failures(self) -> Mapping[str, str]:
        self._call()
        found, self.refused = self.refused, {}
        return found

    def turn_on(self, name: str) -> None:
        self.states[name], self.booted[name] = ON, self.now + BOOT_SECONDS

    def kill(self, name: str) -> None:
        self.states[name] = OFF
        self.ends.pop(name, None)
        self.booted.pop(name, None)

    def tick(self, now: float) -> None:
        self.now = now
        for name in [name for name, end in self.ends.items() if end <= now]:
            self.kill(name)

    def is_up(self, name: str) -> bool:
        return name in self.booted and self.booted[name] <= self.now


class Calls:
    """The channel's view of the machines."""

    def __init__(self, machines: Machines) -> None:
        self.states = machines.look_up
        self.start, self.stop, self.failures = machines.start, machines.stop, machines.failures


@dataclass
class Node:
    base: str = "IDLE"
    flags: set[str] = field(default_factory=set)
    reason: str = ""
    last_busy: float = 0.0
    since: float = 0.0
    """When the node began to power up or down."""
    boot: float | None = 0.0
    """The boot that has registered."""


@dataclass
class Cluster:
    """slurmctld, its jobs, and the machines. Time passes in steps, in each of which the service runs once."""

    folder: Path
    minimum: int = 0
    machines: Machines = field(default_factory=Machines)
    nodes: dict[str, Node] = field(default_factory=lambda: {name: Node() for name in NAMES})
    jobs: list[Job] = field(default_factory=list)
    is_down: bool = False
    now: float = 0.0
    unexplained: dict[str, float] = field(default_factory=dict)
    interrupted: list[str] = field(default_factory=list)
    """Nodes that the service set down or stopped although their machines were running a job."""
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / HISTORY).parent.mkdir()
        self.restart_service()

    def restart_service(self) -> None:
        # The service waits again for machines that a person or `pulumi up` may have started.
        self.unexplained.clear()
        site = Site(15.0, (Group("a", 0, ADDRESSES, Elastic(NAMES, self.minimum, IDLE_SECONDS)),), START_SECONDS)
        self.service = Service(
            site, state=self.folder, control=self.control, answering=self.answering, power=Calls(self.machines)
        )

    def answering(self, addresses: Mapping[str, str]) -> set[str]:
        return {name for name in addresses if self.machines.is_up(name)}

    def control(self, *arguments: str) -> str | None:
        if self.is_down:
            return None
        if arguments[0] == "-o":
            return "" if arguments[2] != "node" else "".join(self._line(name) for name in NAMES)
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        node = self.nodes[values["nodename"]]
        match values["state"]:
            case "down":
                if self.machines.is_up(values["nodename"]) and self._runs_job(values["nodename"]):
                    self.interrupted.append(values["nodename"])
                self._requeue(values["nodename"])
                node.base, node.reason = "DOWN", values["reason"]
                node.flags -= {"COMPLETING"}
            case "power_down" if "POWERING_DOWN" not in node.flags:
                node.flags |= {"POWER_DOWN"}
                if node.base == "DOWN":
                    node.flags -= {"POWERING_UP"}
            case "power_up" if "POWERED_DOWN" in node.flags:
                node.flags |= {"POWER_UP"}
            case "resume":
                if "POWERING_DOWN" in node.flags:
                    node.flags = node.flags - {"POWERING_DOWN"} | {"POWERED_DOWN"}
                if node.base == "DOWN":
                    node.base, node.last_busy = "IDLE", self.now
                    node.flags |= {"NOT_RESPONDING"}
                node.flags -= {"DRAIN"}
        return ""

    def _line(self, name: str) -> str:
        node = self.nodes[name]
        state = "+".join([node.base, *sorted(node.flags)])
        reason = f" Reason={node.reason} [root@1]" if node.reason else ""
        return f"NodeName={name} State={state} BootTime=1 LastBusyTime={node.last_busy:.0f}{reason}\n"

    def _runs_job(self, name: str) -> bool:
        return any(job.state == "RUNNING" and name in job.on for job in self.jobs)

    def _requeue(self, name: str) -> None:
        for job in self.jobs:
            if job.state in {"CONFIGURING", "RUNNING"} and name in job.on:
                self._release(job)
                job.state = "PENDING"

    def _release(self, job: Job) -> None:
        for other in job.on:
            node = self.nodes[other]
            if node.base == "ALLOCATED":
                node.base, node.last_busy = "IDLE", self.now
        job.on = ()

    def cancel(self, job: Job) -> None:
        if job.state != "DONE":
            self._release(job)
            job.state = "CANCELLED"

    def _schedule(self) -> None:
        usable = {"POWERED_DOWN", "NOT_RESPONDING"}
        for job in (job for job in self.jobs if job.state == "PENDING"):
            free = [
                name
                for name, node in self.nodes.items()
                if node.base == "IDLE" and node.flags <= usable and (node.flags != {"NOT_RESPONDING"})
            ]
            free.sort(key=lambda name: "POWERED_DOWN" in self.nodes[name].flags)
            if len(free) < job.nodes:
                continue
            job.on, job.left, job.state = tuple(free[: job.nodes]), job.seconds, "CONFIGURING"
            for name in job.on:
                node = self.nodes[name]
                node.base = "ALLOCATED"
                if "POWERED_DOWN" in node.flags:
                    self._begin_start(node)

    def _begin_start(self, node: Node) -> None:
        node.flags = node.flags - {"POWERED_DOWN", "POWER_UP"} | {"POWERING_UP", "NOT_RESPONDING"}
        node.since = self.now

    def _save_power(self) -> None:
        for name, node in self.nodes.items():
            if {"POWERED_DOWN", "POWER_UP"} <= node.flags:
                self._begin_start(node)
            if "POWER_DOWN" in node.flags and node.base in {"IDLE", "DOWN"}:
                node.flags -= {"POWER_DOWN", "POWERED_DOWN", "NOT_RESPONDING", "DRAIN", "POWERING_UP"}
                node.flags |= {"POWERING_DOWN"}
                node.since = self.now
            if "POWERING_DOWN" in node.flags and self.now > node.since + SUSPEND_SECONDS:
                node.flags = node.flags - {"POWERING_DOWN"} | {"POWERED_DOWN"}
            if "POWERING_UP" in node.flags and self.now > node.since + START_SECONDS:
                self._requeue(name)
                node.base, node.reason = "DOWN", "ResumeTimeout reached"
                node.flags = node.flags - {"POWERING_UP", "NOT_RESPONDING", "DRAIN"} | {"POWERED_DOWN"}

    def _register(self) -> None:
        power = {"POWERING_UP", "POWERED_DOWN", "POWERING_DOWN", "NOT_RESPONDING"}
        for name, node in self.nodes.items():
            booted = self.machines.booted.get(name)
            is_pinged = not node.flags & {"POWERING_UP", "POWERED_DOWN", "POWERING_DOWN"}
            if not self.machines.is_up(name):
                continue
            if booted == node.boot:
                if is_pinged:
                    node.flags -= {"NOT_RESPONDING"}
                continue
            expected = "POWERING_UP" in node.flags
            node.boot = booted
            if node.flags & power:
                node.last_busy = self.now
            node.flags -= power
            if not expected:
                self._requeue(name)
                node.base, node.reason = "DOWN", node.reason or "Node unexpectedly rebooted"
            if may_return(SlurmNode(node.base, node.reason), is_new=False):
                # The stage 90-health of the node.
                node.base, node.reason, node.last_busy = "IDLE", "", self.now

    def _run_jobs(self) -> None:
        for job in self.jobs:
            if job.state == "CONFIGURING" and not any(self.nodes[name].flags for name in job.on):
                job.state = "RUNNING"
                job.executions += 1
            if job.state == "RUNNING" and all(self.machines.is_up(name) for name in job.on):
                job.left -= STEP_SECONDS
                if job.left <= 0:
                    self._release(job)
                    job.state = "DONE"

    def run(self, seconds: float) -> None:
        for _ in range(-(-int(seconds) // STEP_SECONDS)):
            self.now += STEP_SECONDS
            self.machines.tick(self.now)
            if not self.is_down:
                self._register()
                self._save_power()
                self._schedule()
                self._run_jobs()
            busy = {name for name in NAMES if self._runs_job(name)}
            before = len(self.machines.calls)
            self.service.run_once(self.now, self.now)
            stopped = {name for order, name in self.machines.calls[before:] if order == OFF}
            self.interrupted += sorted(stopped & busy)
            self._check_costs()

    def _check_costs(self) -> None:
        """Fail if a machine runs without a reason for longer than the grace time.

        Reasons: a job or a start for a job, the minimum of the group, and the idle time.
        """
        idle = [name for name, node in self.nodes.items() if node.base == "IDLE" and not node.flags]
        for name, node in self.nodes.items():
            has_reason = node.base == "ALLOCATED" or name in idle[: self.minimum]
            recently = name in idle and self.now - node.last_busy < IDLE_SECONDS
            if self.machines.states[name] == OFF or has_reason or recently or self.machines.broken or self.is_down:
                self.unexplained.pop(name, None)
                continue
            since = self.unexplained.setdefault(name, self.now)
            assert self.now - since <= GRACE_SECONDS, f"{name} runs without a reason: {self._line(name)}"

    def states(self) -> dict[str, str]:
        return {name: "+".join([node.base, *sorted(node.flags)]) for name, node in self.nodes.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def asleep(cluster: Cluster) -> Cluster:
    """A cluster whose machines have been stopped."""
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS + 30)
    assert set(cluster.machines.states.values()) == {OFF}
    assert set(cluster.states().values()) == {"IDLE+POWERED_DOWN"}
    cluster.machines.calls.clear()
    return cluster


def test_idle_machines_are_stopped_in_time(cluster: Cluster) -> None:
    cluster.run(IDLE_SECONDS - 3)
    assert cluster.machines.calls == []
    cluster.run(9 + STOP_SECONDS)
    assert set(cluster.machines.states.values()) == {OFF}
    cluster.run(1000)
    assert cluster.machines.calls == [(OFF, name) for name in NAMES]


def test_a_job_starts_only_the_machines_that_it_needs(asleep: Cluster) -> None:
    asleep.jobs.append(Job(2, 30))
    asleep.run(BOOT_SECONDS + 9)
    assert asleep.jobs[0].state == "RUNNING"
    assert asleep.machines.calls == [(ON, "a-0"), (ON, "a-1")]
    asleep.run(600)
    assert (asleep.jobs[0].state, asleep.jobs[0].executions) == ("DONE", 1)
    assert set(asleep.machines.states.values()) == {OFF}


def test_the_hours_of_machines_are_recorded(asleep: Cluster) -> None:
    asleep.jobs.append(Job(1, 30))
    asleep.run(400)
    rows = [row.split(" ") for row in (asleep.folder / ON_TIMES).read_text().splitlines()]
    assert [row[1:] for row in rows if row[1] != "head"] == [
        *([name, "on"] for name in NAMES),
        *([name, "off"] for name in NAMES),
        ["a-0", "on"],
        ["a-0", "off"],
    ]
    on, off = (float(row[0]) for row in rows[-2:])
    assert off - on == pytest.approx(BOOT_SECONDS + 30 + IDLE_SECONDS + STOP_SECONDS, abs=15)


def test_the_minimum_stays_on_and_is_restored(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.run(600)
    on = [name for name, state in cluster.machines.states.items() if state == ON]
    assert len(on) == 1
    cluster.nodes[on[0]].flags.add("DRAIN")
    cluster.run(120)
    others = [name for name, state in cluster.machines.states.items() if state == ON and name != on[0]]
    assert len(others) == 1
    assert cluster.states()[others[0]] == "IDLE"


def test_closed_groups_keep_no_idle_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.jobs.append(Job(1, 120))
    cluster.run(30)
    monkeypatch.setattr(cluster.service, "_close_partitions", lambda *_: None)
    assert cluster.service.reconciler is not None
    cluster.service.reconciler.closed = frozenset(NAMES)
    cluster.run(STOP_SECONDS + 15)
    assert sorted(cluster.machines.states.values()) == [OFF, OFF, ON]
    cluster.run(120 + STOP_SECONDS)
    assert (cluster.jobs[0].state, set(cluster.machines.states.values())) == ("DONE", {OFF})
    cluster.service.reconciler.closed = frozenset()
    cluster.run(BOOT_SECONDS + 60)
    assert sorted(cluster.machines.states.values()) == [OFF, OFF, ON]


def test_drained_and_reserved_nodes_stay_on(cluster: Cluster) -> None:
    cluster.nodes["a-0"].flags, cluster.nodes["a-0"].reason = {"DRAIN"}, "TY:xid: fell off the bus"
    cluster.nodes["a-1"].flags = {"PLANNED"}
    cluster.run(280)
    assert cluster.machines.states == {"a-0": ON, "a-1": ON, "a-2": OFF}
    assert cluster.states()["a-0"] == "IDLE+DRAIN"


@pytest.mark.parametrize("is_slow_to_refuse", [False, True])
def test_without_capacity_the_job_waits_and_the_reason_is_shown(asleep: Cluster, is_slow_to_refuse: bool) -> None:
    asleep.machines.full, asleep.machines.is_slow_to_refuse = True, is_slow_to_refuse
    job = Job(1, 30)
    asleep.jobs.append(job)
    asleep.run(60)
    # Each node is tried once, and then no longer.
    assert job.state == "PENDING"
    assert sorted(asleep.machines.calls) == [(ON, name) for name in NAMES]
    node = asleep.nodes["a-0"]
    assert node.base == "DOWN"
    assert "TY:power: the machine cannot start: no capacity; next attempt after " in node.reason
    asleep.run(HOLD_SECONDS / 2)
    assert len(asleep.machines.calls) == 3
    asleep.machines.full = False
    asleep.run(HOLD_SECONDS / 2 + BOOT_SECONDS + 30)
    assert job.state in {"RUNNING", "DONE"}
    assert job.executions == 1


def test_partial_capacity_does_not_keep_the_other_machines_on(asleep: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job, start = Job(3, 30), asleep.machines.start

    def without_capacity(name: str) -> None:
        if name == "a-2":
            raise RefusedError("no capacity")
        start(name)

    reconciler = asleep.service.reconciler
    assert reconciler is not None
    monkeypatch.setattr(reconciler.power, "start", without_capacity)
    asleep.jobs.append(job)
    hours = 0.0
    for _ in range(24 * 60):
        asleep.run(60)
        hours += sum(state != OFF for state in asleep.machines.states.values()) / 60
    assert job.state == "PENDING"
    # Two machines start for each of nine attempts: after 0, 10, 30, 70, 150 and 310 minutes, and then every four hours.
    assert hours < 9 * 2 * (BOOT_SECONDS + IDLE_SECONDS + STOP_SECONDS + 60) / 3600


def test_an_outage_of_the_api_does_not_mark_nodes_as_faulty(asleep: Cluster) -> None:
    asleep.machines.broken = True
    job = Job(1, 30)
    asleep.jobs.append(job)
    asleep.run(3 * START_SECONDS + 60)
    asleep.machines.broken = False
    asleep.run(BOOT_SECONDS + 120)
    assert job.state == "DONE"
    assert {node.reason for node in asleep.nodes.values() if node.base == "DOWN"} == set()


@pytest.mark.parametrize("killed", [("a-1",), NAMES])
@pytest.mark.parametrize("phase", range(0, 30, 3))
def test_a_drain_survives_the_end_of_the_machine(cluster: Cluster, phase: int, killed: tuple[str, ...]) -> None:
    cluster.jobs.append(Job(3, 5000))
    cluster.run(90 + phase)
    node = cluster.nodes["a-1"]
    node.flags |= {"DRAIN"}
    node.reason = "alice@pc: broken fan"
    for name in killed:
        cluster.machines.kill(name)
    cluster.run(900)
    assert node.reason == "alice@pc: broken fan"
    assert node.base == "DOWN" or "DRAIN" in node.flags


def test_a_drain_survives_a_start_without_capacity(asleep: Cluster) -> None:
    asleep.machines.full = asleep.machines.is_slow_to_refuse = True
    asleep.jobs.append(Job(1, 30))
    asleep.run(3)
    node = asleep.nodes["a-0"]
    assert "POWERING_UP" in node.flags
    node.flags |= {"DRAIN"}
    node.reason = "alice@pc: broken fan"
    asleep.run(30)
    asleep.machines.full = False
    asleep.run(3 * HOLD_SECONDS)
    assert node.reason == "alice@pc: broken fan"
    assert node.base == "DOWN" or "DRAIN" in node.flags


def test_a_lost_node_does_not_count_towards_the_minimum(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.run(600)
    (on,) = [name for name, state in cluster.machines.states.items() if state == ON]
    cluster.nodes[on].base, cluster.nodes[on].reason = "DOWN", "TY:gone: no answer for 15 s"
    cluster.machines.booted[on] = 1e9
    cluster.run(BOOT_SECONDS + 30)
    assert [name for name, state in cluster.states().items() if state == "IDLE" and name != on]


def test_a_machine_that_does_not_come_up_is_stopped_and_marked(asleep: Cluster) -> None:
    job = Job(3, 30)
    asleep.jobs.append(job)
    asleep.run(6)
    asleep.machines.booted["a-1"] = 1e9
    asleep.run(START_SECONDS + 60)
    node = asleep.nodes["a-1"]
    assert (node.base, node.reason) == ("DOWN", "TY:gone: no answer within 3 min of the machine's start")
    assert asleep.machines.states["a-1"] == OFF
    assert job.state == "PENDING"


def test_a_machine_that_a_person_starts_returns_to_service(asleep: Cluster) -> None:
    asleep.machines.turn_on("a-0")
    asleep.run(BOOT_SECONDS + 9)
    assert asleep.states()["a-0"] == "IDLE"
    asleep.run(300)
    assert asleep.machines.states["a-0"] == OFF


def test_a_machine_that_a_person_starts_after_a_refusal_returns_to_service(asleep: Cluster) -> None:
    asleep.machines.full = True
    asleep.jobs.append(Job(1, 30))
    asleep.run(SUSPEND_SECONDS + 30)
    assert asleep.nodes["a-0"].reason.startswith("TY:power: ")
    asleep.machines.turn_on("a-0")
    asleep.run(BOOT_SECONDS + 45)
    assert (asleep.jobs[0].state, asleep.jobs[0].executions) == ("DONE", 1)
    assert (OFF, "a-0") not in asleep.machines.calls
    asleep.run(300)
    assert asleep.machines.states["a-0"] == OFF


def test_a_started_machine_that_never_registers_is_stopped(asleep: Cluster) -> None:
    asleep.machines.turn_on("a-0")
    asleep.machines.booted["a-0"] = 1e9
    asleep.run(START_SECONDS + 90)
    assert asleep.machines.states["a-0"] == OFF


def test_the_job_of_a_killed_machine_starts_again(asleep: Cluster) -> None:
    job = Job(3, 200)
    asleep.jobs.append(job)
    asleep.run(100)
    assert job.state == "RUNNING"
    asleep.machines.kill("a-1")
    asleep.run(BOOT_SECONDS + 120)
    assert (job.state, job.executions) == ("RUNNING", 2)


def test_the_gate_keeps_idle_machines_on(cluster: Cluster) -> None:
    with (cluster.folder / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        cluster.run(280)
        assert cluster.machines.calls == []
    cluster.run(60)
    assert set(cluster.machines.states.values()) == {OFF}


def test_a_lost_stop_is_repaired_before_the_next_job(cluster: Cluster) -> None:
    cluster.run(30)
    cluster.machines.broken = True
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS)
    assert set(cluster.states().values()) == {"IDLE+POWERED_DOWN"}
    job = Job(1, 30)
    cluster.jobs.append(job)
    cluster.run(3)
    cluster.machines.broken = False
    cluster.run(STOP_SECONDS + BOOT_SECONDS + 90)
    assert (job.state, job.executions) == ("DONE", 1)


def test_lost_second_command_is_repeated(asleep: Cluster) -> None:
    reconciler = asleep.service.reconciler
    assert reconciler is not None
    control = reconciler.control

    def without_power_down(*arguments: str) -> str | None:
        return None if "state=power_down" in arguments else control(*arguments)

    reconciler.control = without_power_down
    asleep.machines.full = True
    asleep.jobs.append(Job(3, 30))
    asleep.run(9)
    assert set(asleep.states().values()) == {"DOWN+NOT_RESPONDING+POWERING_UP"}
    reconciler.control = control
    asleep.run(90)
    assert set(asleep.states().values()) == {"DOWN+POWERED_DOWN"}


def _submit(cluster: Cluster, chance: random.Random) -> None:
    cluster.jobs.append(Job(chance.randint(1, 3), chance.randint(5, 200)))


def _cancel(cluster: Cluster, chance: random.Random) -> None:
    if cluster.jobs:
        cluster.cancel(chance.choice(cluster.jobs))


def _kill(cluster: Cluster, chance: random.Random) -> None:
    cluster.machines.kill(chance.choice(NAMES))


def _fill(cluster: Cluster, chance: random.Random) -> None:
    machines = cluster.machines
    machines.full, machines.is_slow_to_refuse = not machines.full, chance.random() < 0.5


def _break(cluster: Cluster, _chance: random.Random) -> None:
    cluster.machines.broken = not cluster.machines.broken


def _stop_slurmctld(cluster: Cluster, _chance: random.Random) -> None:
    cluster.is_down = not cluster.is_down


def _restart_service(cluster: Cluster, _chance: random.Random) -> None:
    cluster.restart_service()


def _start(cluster: Cluster, _chance: random.Random) -> None:
    for name in [name for name, state in cluster.machines.states.items() if state == OFF][:1]:
        cluster.machines.turn_on(name)


EVENTS = (_submit, _submit, _cancel, _kill, _fill, _break, _stop_slurmctld, _restart_service, _start)


def _disturb(cluster: Cluster, chance: random.Random) -> None:
    chance.choice(EVENTS)(cluster, chance)


@pytest.mark.parametrize("seed", range(50))
def test_random_faults_lose_no_job_and_waste_no_machine(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  (not for security)
    cluster = Cluster(tmp_path, minimum=chance.randint(0, 1))
    machines = cluster.machines
    for _ in range(30):
        _disturb(cluster, chance)
        cluster.run(chance.randint(1, 150))
    machines.full = machines.broken = cluster.is_down = False
    cluster.run(HOLD_SECONDS + 3 * START_SECONDS)
    for _ in range(40):
        if all(job.state in {"DONE", "CANCELLED"} for job in cluster.jobs):
            break
        # A node that is marked as faulty needs a person.
        for name, node in cluster.nodes.items():
            if node.base == "DOWN" and node.reason.startswith("TY:gone: no answer within"):
                cluster.control("update", f"nodename={name}", "state=resume")
        cluster.run(120)
    assert cluster.interrupted == []
    waiting = [job for job in cluster.jobs if job.state not in {"DONE", "CANCELLED"}]
    assert waiting == [], cluster.control("-o", "show", "node")
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS + START_SECONDS)
    on = [name for name, state in machines.states.items() if state != OFF]
    assert len(on) <= cluster.minimum, cluster.states()
