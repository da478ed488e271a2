"""Limits of repairs. All functions are pure.

Too many simultaneous repairs can turn a network fault or a faulty check into an outage of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from yard.heal.case import Case, fault
from yard.heal.ladder import Decision, Phase, Step

SHARE = 0.05
"""Maximum share of the nodes that are repaired at the same time. One node is always allowed."""
DAILY = 3
"""Maximum number of repairs of a node per day."""
EPIDEMIC_NODES, EPIDEMIC_SHARE, EPIDEMIC_SECONDS = 3, 0.2, 600.0
"""A fault that affects this number of nodes and more than this share of their group within this time is an epidemic."""
_DAY = 86400.0
_COSTLY = frozenset({Step.REBOOT, Step.REPLACE})


@dataclass(frozen=True)
class Limits:
    """Limits from the command line. `usd_per_hour`: the price of the stack, or None if it is unknown."""

    max_usd_per_hour: float | None
    usd_per_hour: float | None


def brake(decisions: Sequence[Decision], cases: Sequence[Case], limits: Limits, now: float) -> list[Decision]:
    """Return the decisions. A step that a limit forbids is replaced with WAIT and the reason."""
    known = {case.name: case for case in cases}
    sick = epidemics(cases)
    repairing = sum(decision.phase is Phase.REPAIRING for decision in decisions)
    room = max(1, int(SHARE * len(cases))) - repairing
    result = []
    for decision in decisions:
        case = known[decision.node]
        why = ""
        if decision.step in _COSTLY:
            why = _refusal(case, decision.step, sick, limits, now)
            if not why and room <= 0:
                why = f"at most {max(1, int(SHARE * len(cases)))} of {len(cases)} nodes are repaired at the same time"
            room -= not why
        result.append(replace(decision, step=Step.WAIT, why=f"{decision.step}: {why}") if why else decision)
    return result


def epidemics(cases: Sequence[Case]) -> set[tuple[str, str]]:
    """Return the group and the fault of each epidemic."""
    begins: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        kind = fault(case.reason)
        if kind and case.faults and not case.is_in_service:
            begins.setdefault((case.group, kind), []).append(case.faults[-1].time)
    sizes = Counter(case.group for case in cases)
    return {
        (group, kind)
        for (group, kind), times in begins.items()
        if len(times) > EPIDEMIC_SHARE * sizes[group]
        and any(sum(begin <= other <= begin + EPIDEMIC_SECONDS for other in times) >= EPIDEMIC_NODES for begin in times)
    }


def _refusal(case: Case, step: Step, sick: set[tuple[str, str]], limits: Limits, now: float) -> str:
    """Return why a step is not allowed for a node, or an empty string."""
    kind = fault(case.reason) or ""
    if (case.group, kind) in sick:
        return f"many nodes of group {case.group} have the fault '{kind}', so a common cause is likely"
    if sum(now - action.time < _DAY for action in case.actions) >= DAILY:
        return f"this node was repaired {DAILY} times within a day"
    if step is not Step.REPLACE or limits.max_usd_per_hour is None:
        return ""
    if limits.usd_per_hour is None:
        return "--max-usd-per-hour is set, but the price of the stack is unknown"
    if limits.usd_per_hour > limits.max_usd_per_hour:
        return f"the stack costs {limits.usd_per_hour:g} $/h, more than --max-usd-per-hour"
    return ""
