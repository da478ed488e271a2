"""Decides the next repair step for each node.

A faulty node is not repaired for the first PATIENCE_SECONDS, because it may pass its health checks again and return to
service. Then the steps of `ladder` run in turn, and each has PATIENCE_SECONDS to take effect. After the last step, or
after STRIKES faults in a week, the node is quarantined: it stays out of service until an operator resumes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from trainyard.faults import (
    BANDWIDTH,
    GONE,
    QUARANTINE,
    ROLL,
    Change,
    cause_of,
    fault,
    is_epidemic,
    is_in_service,
    is_own,
    operator_in,
)
from yard.repair.drain import States

PATIENCE_SECONDS = 600.0
PROBATION_SECONDS = 3600.0
STRIKES = 3
STRIKE_SECONDS = 7 * 86400.0
REPAIRED_SHARE = 0.05
"""The share of all nodes that can be repaired at the same time. The minimum is one node."""
REPAIRS_PER_DAY = 3
"""Maximum number of repairs of a node per day."""
EPIDEMIC_NODES, EPIDEMIC_SECONDS = 3, 600.0
"""A fault is an epidemic if EPIDEMIC_NODES nodes get it within EPIDEMIC_SECONDS and a large share of a group has it."""
_DAY = 86400.0


class Phase(StrEnum):
    """A node's phase. In HEALTHY and PROBATION, the node is in service."""

    HEALTHY = "healthy"
    PROBATION = "probation"
    """In service again after a repair."""
    FOREIGN = "foreign"
    """Out of service for a reason that is not a fault. An operator, `yard roll` or the cloud has set the reason."""
    QUARANTINED = "quarantined"
    SUSPECT = "suspect"
    DRAINING = "draining"
    """Jobs are still running on the node."""
    REPAIRING = "repairing"
    FAULTY = "faulty"
    """The next step is due."""


class Step(StrEnum):
    NONE = "none"
    WAIT = "wait"
    START = "start"
    """An operator starts the machine."""
    REBOOT = "reboot"
    REPLACE = "replace"
    QUARANTINE = "quarantine"


_STEPS: Mapping[Phase, tuple[Step, str]] = {
    Phase.HEALTHY: (Step.NONE, "in service"),
    Phase.PROBATION: (Step.NONE, "in service again, on probation for an hour after the repair"),
    Phase.QUARANTINED: (
        Step.NONE,
        "quarantined: correct the cause or run `yard replace` with this node, then run `yard undrain`",
    ),
    Phase.DRAINING: (Step.WAIT, "jobs are still running on the node"),
    Phase.REPAIRING: (Step.WAIT, "the last step may still take effect"),
}
"""Mapping from each phase except FAULTY, FOREIGN and SUSPECT to its step and the step's explanation."""
_COSTLY = frozenset({Step.REBOOT, Step.REPLACE})


@dataclass(frozen=True)
class Action:
    """A repair that `yard heal` has begun. `fault` is empty if an older version wrote the record."""

    time: float
    node: str
    step: str
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node with its state changes and its repairs, both sorted by time."""

    name: str
    group: str
    state: str
    reason: str
    set_by: str = ""
    """Who set the reason and when, or empty if Slurm names nobody."""
    changes: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()

    @property
    def fault(self) -> str | None:
        return fault(self.reason)

    @property
    def faults(self) -> tuple[Change, ...]:
        """The changes that began a fault, including faults that have ended since."""
        before = ("", *(change.reason for change in self.changes))
        pairs = zip(self.changes, before, strict=False)
        return tuple(change for change, earlier in pairs if fault(change.reason) and not fault(earlier))

    @property
    def attempts(self) -> tuple[Action, ...]:
        """The repairs that were tried for the current fault."""
        since = self.faults[-1].time if self.faults else 0.0
        return tuple(action for action in self.actions if action.time >= since)


@dataclass(frozen=True)
class Decision:
    """A node's next step and the reason for it."""

    node: str
    phase: Phase
    step: Step
    why: str
    epidemic: bool = False
    """Whether the step must wait because many nodes have this fault."""


@dataclass(frozen=True)
class Limits:
    """The limit for the stack's price, and the price itself. A missing limit or an unknown price is None."""

    max_usd_per_hour: float | None
    usd_per_hour: float | None


def cases(
    groups: Mapping[str, str],
    states: States,
    history: Any,
    actions: Iterable[Action],
    authors: Mapping[str, str] = MappingProxyType({}),
) -> list[Case]:
    """Return a case for each worker.

    `groups` maps nodes to groups, and `authors` maps nodes to whoever set their reasons. `history` is from HISTORY.
    """
    done = sorted(actions, key=lambda action: action.time)
    return [
        Case(
            name=name,
            group=group,
            state=states.get(name, ("unknown", ""))[0],
            reason=states.get(name, ("unknown", ""))[1],
            set_by=authors.get(name, ""),
            changes=tuple(Change(**row) for row in history.get("history", {}).get(name, ())),
            actions=tuple(action for action in done if action.node == name),
        )
        for name, group in groups.items()
    ]


def parse_actions(text: str) -> list[Action]:
    """Parse the record of repairs. Each line is a JSON object."""
    return [Action(**json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def phase_of(case: Case, now: float) -> Phase:
    """Return a node's phase. `now` is in seconds since 1970."""
    if is_in_service(case.state):
        is_recent = any(now - change.time < PROBATION_SECONDS for change in case.changes[-1:])
        return Phase.PROBATION if case.attempts and is_recent else Phase.HEALTHY
    if cause_of(case.reason) == QUARANTINE:
        return Phase.QUARANTINED
    if case.fault is None:
        # If a node does not respond, Slurm sets the reason some seconds after the state.
        return Phase.FOREIGN if case.reason or "*" not in case.state else Phase.SUSPECT
    if case.state.startswith("draining"):
        return Phase.DRAINING
    if case.attempts:
        return Phase.REPAIRING if now - case.attempts[-1].time < PATIENCE_SECONDS else Phase.FAULTY
    began = case.faults[-1].time if case.faults else now
    return Phase.SUSPECT if now - began < PATIENCE_SECONDS else Phase.FAULTY


def strikes(case: Case, now: float) -> int:
    return sum(now - change.time < STRIKE_SECONDS for change in case.faults)


def ladder(case: Case, now: float) -> list[Step]:
    """Return the steps that have not been tried for the node's fault.

    A machine that does not respond cannot be rebooted over SSH, and only `pulumi up` measures a slow node again. An
    earlier reboot for the same fault counts as tried for a week, unless the machine has been replaced since.
    """
    steps = [Step.REPLACE] if case.fault in {GONE, BANDWIDTH} else [Step.REBOOT, Step.REPLACE]
    since = max([now - STRIKE_SECONDS, *(action.time for action in case.actions if action.step == Step.REPLACE)])
    returned = [action for action in case.actions if action.fault == case.fault and action.time > since]
    tried = {action.step for action in (*case.attempts, *returned)}
    return [step for step in steps if step not in tried]


def decide(case: Case, now: float, *, can_replace: bool, start: str) -> Decision:
    """Return the next step. `can_replace` says whether the platform creates the machines, and `start` how an operator
    starts a stopped machine.
    """
    phase = phase_of(case, now)
    if phase is Phase.SUSPECT:
        return Decision(case.name, phase, Step.WAIT, _suspect(case, can_replace=can_replace, start=start))
    if phase is Phase.FOREIGN:
        return Decision(case.name, phase, Step.NONE, _foreign(case))
    if phase is not Phase.FAULTY:
        return Decision(case.name, phase, *_STEPS[phase])
    if (count := strikes(case, now)) >= STRIKES:
        return Decision(case.name, phase, Step.QUARANTINE, f"{count} faults in a week")
    left = [step for step in ladder(case, now) if can_replace or step is not Step.REPLACE]
    tried = ", ".join(action.step for action in case.attempts)
    if not left:
        why = f"the fault remains after all steps: {tried or 'no step is possible'}"
        return Decision(case.name, phase, Step.QUARANTINE, why)
    return Decision(
        case.name, phase, left[0], f"the fault '{case.fault}' {f'remains after: {tried}' if tried else 'remains'}"
    )


def with_stopped(decisions: Iterable[Decision], stopped: Mapping[str, str]) -> list[Decision]:
    """Return the decisions. A node whose machine is known to have stopped is FAULTY, and its step is START.

    `stopped` is a mapping from the names of these nodes to an explanation with the command that starts the machine.
    """
    return [
        replace(each, phase=Phase.FAULTY, step=Step.START, why=stopped[each.node]) if each.node in stopped else each
        for each in decisions
    ]


def _suspect(case: Case, *, can_replace: bool, start: str) -> str:
    """Explain how long the repair waits, and what an operator can do meanwhile."""
    why = [f"the fault may end by itself within {PATIENCE_SECONDS / 60:.0f} minutes"]
    if case.fault == GONE or not case.reason:
        why = [f"if the machine has stopped, start it with {start}; otherwise run `yard doctor` or wait"]
    if can_replace:
        why.append(f"`yard replace {case.name}` does not wait")
    return "; ".join(why)


def _foreign(case: Case) -> str:
    """Explain who took a node out of service for a reason that is not a fault."""
    if case.reason == ROLL:
        return f"`yard roll {case.group}` or `yard replace {case.name}` is not finished; the same command continues it"
    if is_own(case.reason):
        return "this project took the node out of service for an update or an event; the node returns automatically"
    back = f"to return the node to service, run `yard undrain {case.name}`"
    if operator := operator_in(case.reason):
        return f"{operator} drained the node; {back}"
    who = f"this state was set by {case.set_by}," if case.set_by else "this state was set"
    said = "with this reason" if case.reason else "without a reason"
    return f"{who} {said}, which is not a fault that yard repairs; {back}"


def limit(decisions: Sequence[Decision], cases: Sequence[Case], limits: Limits, now: float) -> list[Decision]:
    """Return the decisions. Each step that a limit forbids is replaced by WAIT and a reason.

    Without limits, repairs could turn a network fault or a faulty check into an outage of the cluster.
    """
    known = {case.name: case for case in cases}
    sick = epidemics(cases)
    at_once = max(1, int(REPAIRED_SHARE * len(cases)))
    room = at_once - sum(decision.phase is Phase.REPAIRING for decision in decisions)
    result = []
    for decision in decisions:
        case, why = known[decision.node], ""
        is_sick = decision.step in _COSTLY and (case.group, case.fault) in sick
        if is_sick:
            why = f"many nodes of group {case.group} have the fault '{case.fault}', so a common cause is likely"
        elif decision.step in _COSTLY:
            why = _refusal(case, decision.step, limits, now)
            if not why and room <= 0:
                why = f"at most {at_once} of {len(cases)} nodes are repaired at the same time"
            room -= not why
        waits = replace(decision, step=Step.WAIT, why=f"{decision.step}: {why}", epidemic=is_sick)
        result.append(waits if why else decision)
    return result


def epidemics(cases: Sequence[Case]) -> set[tuple[str, str]]:
    """Return the group and the fault of each epidemic."""
    begins: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        if case.fault and case.faults and not is_in_service(case.state):
            begins.setdefault((case.group, case.fault), []).append(case.faults[-1].time)
    sizes = Counter(case.group for case in cases)
    return {
        (group, kind)
        for (group, kind), times in begins.items()
        if is_epidemic(len(times), sizes[group])
        and any(sum(begin <= other <= begin + EPIDEMIC_SECONDS for other in times) >= EPIDEMIC_NODES for begin in times)
    }


def _refusal(case: Case, step: Step, limits: Limits, now: float) -> str:
    """Return why a step is not allowed for a node, or "" if it is."""
    if sum(now - action.time < _DAY for action in case.actions) >= REPAIRS_PER_DAY:
        return f"this node was repaired {REPAIRS_PER_DAY} times within a day"
    if step is not Step.REPLACE or limits.max_usd_per_hour is None:
        return ""
    if limits.usd_per_hour is None:
        return "--max-usd-per-hour is set, but the price of the stack is unknown"
    if limits.usd_per_hour > limits.max_usd_per_hour:
        return f"the stack costs {limits.usd_per_hour:g} $/h, more than --max-usd-per-hour"
    return ""
