"""Elastic nodes: starts machines for waiting jobs, and stops idle machines.

slurmctld allocates nodes that are powered down to jobs, and marks them POWERING_UP. This module starts their machines,
and decides which idle nodes slurmctld marks POWERING_DOWN. slurmctld's own idle time is not used, because it could not
be suspended while `pulumi up` tests the nodes. slurmctld cannot start or stop machines itself: its SuspendProgram and
ResumeProgram do nothing, because it may run no programs on the head (slurmctld.service.d). Each round compares Slurm
with the machines, so a lost call or a restart of the head is repaired in the next round.

Facts about slurmctld (slurmctld/power_save.c and node_mgr.c of Slurm 23.11.4 and 24.11.5, read 2026-11-26):

- A node that is marked DOWN keeps its job's nodes powering up, so `state=power_down` must follow `state=down`.
- A powered-down node that is DOWN is not allocated. `state=resume` returns it to the powered-down nodes.
- `state=power_down` of a node with a job waits for the end of the job. It clears DRAIN, so a drained node stays on.
- A registration of slurmd clears POWERED_DOWN and POWERING_DOWN, even if Slurm did not start the machine.
- If a node does not register before ResumeTimeout, slurmctld marks it DOWN and POWERED_DOWN.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from health.slurm import SlurmNode

from trainyard.faults import GONE, POWER, cause_of, fault, reason_for

ON, OFF, CHANGING = "on", "off", "changing"
"""States of a machine. A machine that is starting or stopping is CHANGING."""
HOLD_SECONDS = 600.0
"""How long a node is not used after its machine could not be started for the first time. The time doubles with each
further attempt."""
_IDLE_MARGIN_SECONDS = 300.0
"""How much longer than `idle_seconds` a node is not used. Meanwhile, the machines that did start for the same job
become idle and stop, instead of running until the missing machine has capacity."""
_MAX_HOLD_SECONDS = 4 * 3600.0
_OFF = frozenset({"POWERING_DOWN", "POWERED_DOWN"})
_REQUESTED = frozenset({"POWER_DOWN", "POWER_UP", "POWER_DRAIN", "REBOOT_REQUESTED", "REBOOT_ISSUED"})
"""slurmctld replaces these flags within seconds or when a job ends."""
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_LATE = "ResumeTimeout reached"
"""The reason that slurmctld sets when a node has not registered in time."""
MACHINE_OFF = reason_for(GONE, "the machine is off")
_REPEAT_SECONDS = 60.0
"""The time after which an order is repeated if it had no effect."""
_POLL_SECONDS = 60.0
"""How often a machine is looked up while it agrees with Slurm."""
_LOOK_SECONDS = 5.0
"""How often a machine is looked up while it is changing or does not agree with Slurm."""
_PAUSE_SECONDS = 30.0
"""The time without calls after a failed look-up. The service does not watch for lost nodes during a call, which can
take as long as its timeout."""
_CONFIRM_SECONDS = 10.0
"""How long a machine must be off before its node counts as lost, because a restart also turns it off."""


class PowerError(Exception):
    """A call that failed. The message states the reason. Such calls are repeated."""


class RefusedError(PowerError):
    """The platform cannot carry out the call now, for example because it has no capacity."""


class Power(Protocol):
    """The calls that list, start and stop machines. All of them can raise PowerError."""

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        """Return a mapping from node name to ON, OFF or CHANGING. Machines that do not exist are omitted."""

    def start(self, name: str) -> None:
        """Begin to start a machine."""

    def stop(self, name: str) -> None:
        """Begin to stop a machine so that it costs nothing except its disk."""

    def failures(self) -> Mapping[str, str]:
        """Return the starts that have failed since the last call, as a mapping from node name to reason."""


@dataclass(frozen=True)
class Elastic:
    """The settings of an elastic group. `nodes` contains the names of its nodes."""

    nodes: tuple[str, ...]
    minimum: int
    """The number of nodes that stay on."""
    idle_seconds: float


def is_given_up(node: SlurmNode) -> bool:
    """Return whether this module has set the node down because its machine does not start or has stopped."""
    return "DOWN" in node.flags and (cause_of(node.reason) == POWER or node.reason == MACHINE_OFF)


def wish(node: SlurmNode) -> str | None:
    """Return the state that Slurm needs the node's machine to have (ON or OFF), or None if both states are right.

    A machine whose node a person or a health check has taken out of service is neither started nor stopped.
    """
    flags = node.flags
    if is_given_up(node):
        return OFF
    if "POWERING_UP" in flags:
        return ON
    if flags & _OFF:
        return OFF
    if flags & _REQUESTED:
        return None
    if flags & {"DOWN", "DRAIN"} and not flags & BUSY:
        return ON if "DOWN" in flags and fault(node.reason) == GONE else None
    return ON


@dataclass
class Reconciler:
    """Makes the machines of elastic groups agree with Slurm. All times are in seconds of a monotonic clock."""

    groups: tuple[Elastic, ...]
    power: Power
    control: Callable[..., str | None]
    """Runs scontrol, and returns None if it failed."""
    start_seconds: float
    """How long a machine can take from its start until its node registers."""
    known: dict[str, str] = field(default_factory=dict)
    """The last state of each machine."""
    looked_up: float | None = None
    """The time at which machines were last looked up."""
    ordered: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Mapping from node name to the last order (ON or OFF) and its time, until the machine has obeyed."""
    differs: dict[str, float] = field(default_factory=dict)
    """Mapping from node name to the time since which its machine has not had the state that Slurm needs."""
    held: dict[str, float] = field(default_factory=dict)
    """Mapping from node name to the time until which the node is not used."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Mapping from node name to the number of starts that failed since the node was last usable."""
    booted: set[str] = field(default_factory=set)
    """Nodes that slurmctld is powering up and whose machines are on."""
    stale: set[str] = field(default_factory=set)
    """Nodes whose machines were on when Slurm had powered them down. slurmctld does not ping a node that is starting,
    so a machine that was never off would not register, and must be stopped first."""

    closed: frozenset[str] = frozenset()
    """Nodes in closed partitions (partitions.py). They are powered down as soon as they are idle."""
    paused_until: float = 0.0
    problem: str = ""
    """The last problem that was reported."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for group in self.groups for name in group.nodes)

    def run_once(
        self, nodes: Mapping[str, SlurmNode], busy_since: Mapping[str, float], now: float, gated: bool
    ) -> None:
        """Compare Slurm with the machines, and change what differs.

        `nodes` contains Slurm's nodes by name, and `busy_since` how many seconds ago each of them ran a job. While
        `gated` is set, `pulumi up` tests the nodes, so none is powered down.
        """
        nodes = {name: node for name, node in nodes.items() if name in self.names}
        for name, node in nodes.items():
            if _is_running(node):
                self.refusals.pop(name, None)
                self.booted.discard(name)
        if not gated:
            self._power_down_idle(nodes, busy_since)
            self._keep_minimum(nodes)
        if now < self.paused_until:
            return
        try:
            self._look_up(nodes, now)
            refused = self.power.failures()
        except PowerError as error:
            self._report(f"cannot look up machines: {error}")
            self.paused_until = now + _PAUSE_SECONDS
            return
        problems = []
        for name, node in nodes.items():
            try:
                self._match(name, node, now, gated=gated, refusal=refused.get(name))
            except PowerError as error:
                problems.append(f"{name}: {error}")
        self._report("; ".join(problems))

    def _report(self, problem: str) -> None:
        """Write a problem to the journal once."""
        if problem and problem != self.problem:
            sys.stderr.write(f"{problem}\n")
        self.problem = problem

    @property
    def _settings(self) -> list[Elastic]:
        """The groups. A group in a closed partition needs no idle machine."""
        return [
            replace(group, minimum=0, idle_seconds=0.0) if self.closed.issuperset(group.nodes) else group
            for group in self.groups
        ]

    @property
    def not_off(self) -> frozenset[str]:
        """The nodes whose machines are on, changing, or ordered to start. Machines that do not exist count as off.

        A machine that was ordered to start is looked up only some seconds later.
        """
        if self.looked_up is None:
            return self.names
        starting = {name for name, (order, _) in self.ordered.items() if order == ON}
        return frozenset(name for name in self.names if self.known.get(name, OFF) != OFF or name in starting)

    def _power_down_idle(self, nodes: Mapping[str, SlurmNode], idle: Mapping[str, float]) -> None:
        for group in self._settings:
            running = [name for name in group.nodes if name in nodes and _is_running(nodes[name])]
            spare = len(running) - group.minimum
            # PLANNED and RESERVED nodes will soon run a job.
            over = [
                name for name in running if nodes[name].flags == {"IDLE"} and idle.get(name, 0.0) >= group.idle_seconds
            ]
            for name in over[: max(0, spare)]:
                self.control("update", f"nodename={name}", "state=power_down")

    def _keep_minimum(self, nodes: Mapping[str, SlurmNode]) -> None:
        for group in self._settings:
            members = {name: nodes[name] for name in group.nodes if name in nodes}
            missing = group.minimum - sum(_is_running(node) or _is_starting(node) for node in members.values())
            off = [
                name for name, node in members.items() if node.flags - {"NOT_RESPONDING"} == {"IDLE", "POWERED_DOWN"}
            ]
            for name in off[: max(0, missing)]:
                self.control("update", f"nodename={name}", "state=power_up")

    def _look_up(self, nodes: Mapping[str, SlurmNode], now: float) -> None:
        """Look up the machines that are changing, that do not agree with Slurm, or whose nodes do not respond.

        All machines are looked up once a minute.
        """
        self._mark_stale(nodes)
        wanted = {name: wish(node) for name, node in nodes.items()}
        since = now - self.looked_up if self.looked_up is not None else _POLL_SECONDS
        if since < _LOOK_SECONDS:
            return
        names = sorted(name for name in nodes if since >= _POLL_SECONDS or self._is_unsettled(name, nodes[name]))
        if not names:
            return
        found = self.power.states(names)
        self.looked_up = now
        kept = {name: state for name, state in self.known.items() if name in nodes and name not in names}
        self.known = kept | dict(found)
        self._mark_stale(nodes)
        self.ordered = {
            name: (order, when)
            for name, (order, when) in self.ordered.items()
            if self.known.get(name) != order and (wanted.get(name) == order or name in self.stale)
        }
        self.differs = {
            name: self.differs.get(name, now)
            for name, want in wanted.items()
            if want is not None and name in self.known and self.known[name] != want
        }

    def _mark_stale(self, nodes: Mapping[str, SlurmNode]) -> None:
        is_on = {name for name, node in nodes.items() if self.known.get(name) == ON}
        self.stale |= {name for name in is_on if nodes[name].flags & _OFF}
        self.stale &= {name for name in is_on if nodes[name].flags & (_OFF | {"POWERING_UP"})}
        self.booted |= {name for name in is_on - self.stale if "POWERING_UP" in nodes[name].flags}

    def _is_unsettled(self, name: str, node: SlurmNode) -> bool:
        agrees = wish(node) in {None, self.known.get(name)} and self.known.get(name) != CHANGING
        is_silent = not node.flags & _OFF and bool(node.flags & {"DOWN", "NOT_RESPONDING"})
        return not agrees or is_silent or name in self.ordered

    def _match(self, name: str, node: SlurmNode, now: float, *, gated: bool, refusal: str | None) -> None:
        state, want = self.known.get(name), wish(node)
        if is_given_up(node) and not node.flags & (_OFF | {"POWER_DOWN"}):
            if state == ON and node.flags.isdisjoint({"POWERING_UP", "NOT_RESPONDING"}):
                # A person started the machine, and the node has registered.
                self.control("update", f"nodename={name}", "state=resume")
                return
            # The second of the two commands failed, for example because slurmctld was restarted.
            self.control("update", f"nodename={name}", "state=power_down")
        elif refusal is not None and want == ON and state != ON:
            self._hold(name, node, refusal, now)
        elif want == OFF and state == OFF:
            self._settle(name, node, now)
        elif state == ON and self._must_stop(name, node, now, gated):
            self._order(name, OFF, now, node)
        elif want == ON and state == OFF and "POWERING_UP" in node.flags:
            self._order(name, ON, now, node)
        elif want == ON and state == OFF and not gated and now - self.differs.get(name, now) >= _CONFIRM_SECONDS:
            # The machine was stopped by the cloud or a person. Slurm requeues the node's jobs, and starts the machine
            # again for the next job that needs it.
            self._give_up(name, node, MACHINE_OFF)

    def _must_stop(self, name: str, node: SlurmNode, now: float, gated: bool) -> bool:
        """Return whether a machine that is on must be stopped now.

        A person or `pulumi up` may have started a machine whose node is powered down. The node then has some time to
        register with Slurm.
        """
        if wish(node) != OFF:
            return name in self.stale
        # The machine of a node that was given up was off, so it has been started since.
        is_ours = not is_given_up(node) and ("POWERING_DOWN" in node.flags or node.reason == _LATE)
        is_ours |= name in self.ordered
        return not gated and (is_ours or now - self.differs.get(name, now) >= self.start_seconds)

    def _settle(self, name: str, node: SlurmNode, now: float) -> None:
        """Return a node that is down to the powered-down nodes, if jobs may start its machine again."""
        if "DOWN" not in node.flags:
            return
        if cause_of(node.reason) == POWER:
            # After a restart of this service, the time starts again.
            if now < self.held.setdefault(name, now + HOLD_SECONDS):
                return
            del self.held[name]
            self.control("update", f"nodename={name}", "state=resume")
        elif node.reason == _LATE and name in self.booted:
            self.booted.discard(name)
            self.control("update", f"nodename={name}", "state=down", f"reason={self._late}")
        elif node.reason == _LATE:
            # The machine was never on, for example because the cloud's API did not answer, so it is not faulty.
            self.control("update", f"nodename={name}", "state=resume")
        elif fault(node.reason) == GONE and node.reason != self._late:
            self.control("update", f"nodename={name}", "state=resume")

    @property
    def _late(self) -> str:
        """The reason of a node that needs a person or `yard heal`."""
        return reason_for(GONE, f"no answer within {self.start_seconds / 60:.0f} min of the machine's start")

    def _order(self, name: str, state: str, now: float, node: SlurmNode) -> None:
        last, when = self.ordered.get(name, ("", 0.0))
        if last == state and now - when < _REPEAT_SECONDS:
            return
        self.ordered[name] = (state, now)
        if state == OFF:
            self.power.stop(name)
            return
        try:
            self.power.start(name)
        except RefusedError as error:
            self._hold(name, node, str(error), now)

    def _hold(self, name: str, node: SlurmNode, why: str, now: float) -> None:
        """Requeue the job that waits for a machine that cannot start, and do not use the node for some time."""
        self.ordered.pop(name, None)
        idle = next(group.idle_seconds for group in self.groups if name in group.nodes)
        first = max(HOLD_SECONDS, idle + _IDLE_MARGIN_SECONDS)
        seconds = min(first * 2 ** self.refusals.get(name, 0), max(first, _MAX_HOLD_SECONDS))
        self.refusals[name] = self.refusals.get(name, 0) + 1
        self.held[name] = now + seconds
        until = time.strftime("%H:%M UTC", time.gmtime(time.time() + seconds))
        self._give_up(name, node, reason_for(POWER, f"the machine cannot start: {why}; next attempt after {until}"))

    def _give_up(self, name: str, node: SlurmNode, reason: str) -> None:
        """Set a node down whose machine is off. A drained node keeps its reason, so it stays out of service.

        `state=power_down` clears DRAIN. A drained node is therefore powered down only while it is powering up, and is
        then kept out of service by its state DOWN, because _settle returns only nodes with the service's own reasons.
        """
        is_drained = "DRAIN" in node.flags and not is_given_up(node)
        self.control("update", f"nodename={name}", "state=down", f"reason={node.reason if is_drained else reason}")
        if not is_drained or "POWERING_UP" in node.flags:
            self.control("update", f"nodename={name}", "state=power_down")


def _is_running(node: SlurmNode) -> bool:
    """Return whether jobs can use the node without waiting for its machine."""
    is_usable = node.flags.isdisjoint({"DOWN", "NOT_RESPONDING"})
    return wish(node) == ON and is_usable and not _is_starting(node)


def _is_starting(node: SlurmNode) -> bool:
    return not node.flags.isdisjoint({"POWERING_UP", "POWER_UP"})
