"""A model of slurmctld's power saving, with the repair service and machines that can fail.

The model follows slurmctld/power_save.c and node_mgr.c of Slurm 24.11.5. tests/integration/test_elastic.py runs the
real slurmctld.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from health.slurm import SlurmNode, may_return
from repair.channels import Hosts
from repair.command import answer
from repair.power import CHANGING, OFF, ON, Elastic, Power, PowerError, RefusedError
from repair.service import Group, Service, Site

from trainyard.faults import HISTORY

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


class Controllers(Hosts):
    """The channel to existing hosts with the same machines. The site's program asks their management controllers."""

    def __init__(self, machines: Machines) -> None:
        super().__init__({}, clock=lambda: machines.now)
        self._machines = machines
        group = Group("a", 0, ADDRESSES, Elastic(NAMES, 0, IDLE_SECONDS))
        self._site = Site(15.0, (group,), START_SECONDS, {"command": "/usr/bin/true"})

    def _ask(self, *request: str) -> Mapping[str, object]:
        answers: list[str] = []
        answer(request, self._site, self._run, answers.append)
        found: dict[str, object] = json.loads(answers[0])
        return found

    def _run(self, call: Sequence[str]) -> str:
        machines, (verb, name, _) = self._machines, call[-3:]
        if machines.broken or (verb == "on" and machines.full):
            raise PowerError("exit code 1")
        if verb == "status":
            # A machine that shuts down still has power.
            return OFF if machines.states[name] == OFF else ON
        machines.start(name) if verb == "on" else machines.stop(name)
        return ""


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
    channel: Callable[[Machines], Power] = Calls
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
            site, state=self.folder, control=self.control, answering=self.answering, power=self.channel(self.machines)
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
