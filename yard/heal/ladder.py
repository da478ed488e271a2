"""The repair ladder: the next step for a node. All functions are pure.

A faulty node is not repaired for the first PATIENCE_SECONDS, because it returns to service if its health checks pass.
Then the steps of the ladder follow. PATIENCE_SECONDS is also the time for each step to take effect. After the
last step, or after STRIKES faults in a week, the node is quarantined: it stays out of service until an operator resumes
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from yard.heal.case import GONE, Case, fault
from yard.roll.nodes import REASON as ROLL

PATIENCE_SECONDS = 600.0
PROBATION_SECONDS = 3600.0
STRIKES = 3
STRIKE_SECONDS = 7 * 86400.0


class Phase(StrEnum):
    """Phase of a node. In the phases HEALTHY and PROBATION, the node is in service."""

    HEALTHY = "healthy"
    PROBATION = "probation"
    """In service again after a repair. A new fault counts as another strike."""
    FOREIGN = "foreign"
    """Out of service for another reason, which an operator, `yard roll` or the cloud has set."""
    QUARANTINED = "quarantined"
    SUSPECT = "suspect"
    DRAINING = "draining"
    """Jobs still run on the node."""
    REPAIRING = "repairing"
    FAULTY = "faulty"
    """The next step of the ladder is due."""


class Step(StrEnum):
    """The action of `yard heal` for a node."""

    NONE = "none"
    WAIT = "wait"
    REBOOT = "reboot"
    REPLACE = "replace"
    QUARANTINE = "quarantine"


STEPS: Mapping[Phase, tuple[Step, str]] = {
    Phase.HEALTHY: (Step.NONE, "in service"),
    Phase.PROBATION: (Step.NONE, "in service again, on probation for an hour after the repair"),
    Phase.QUARANTINED: (Step.NONE, "quarantined: replace the machine, or `scontrol update state=resume` on the head"),
    Phase.SUSPECT: (Step.WAIT, "the fault may end by itself"),
    Phase.DRAINING: (Step.WAIT, "jobs still run on the node"),
    Phase.REPAIRING: (Step.WAIT, "the last step may still take effect"),
}
"""Step and explanation for each phase except FAULTY and FOREIGN."""
LADDERS: Mapping[str, tuple[Step, ...]] = {GONE: (Step.REPLACE,), "bandwidth": (Step.REPLACE,)}
"""Steps by kind of fault. These faults have no reboot step: a machine that does not respond cannot be rebooted over
SSH, and a reboot does not repeat the bandwidth measurement, which only `pulumi up` runs."""
LADDER = (Step.REBOOT, Step.REPLACE)
"""Steps for all other faults."""


@dataclass(frozen=True)
class Decision:
    """The next step for a node, and the reason for it."""

    node: str
    phase: Phase
    step: Step
    why: str


def phase_of(case: Case, now: float) -> Phase:
    """Return a node's phase. `now` is in seconds since 1970."""
    if case.is_in_service:
        is_recent = any(now - change.time < PROBATION_SECONDS for change in case.changes[-1:])
        return Phase.PROBATION if case.attempts and is_recent else Phase.HEALTHY
    if case.reason.startswith("TY:quarantine: "):
        return Phase.QUARANTINED
    if fault(case.reason) is None:
        # Slurm sets the reason of a node that does not respond some seconds after the state.
        return Phase.FOREIGN if case.reason or "*" not in case.state else Phase.SUSPECT
    if case.state.startswith("draining"):
        return Phase.DRAINING
    if case.attempts:
        return Phase.REPAIRING if now - case.attempts[-1].time < PATIENCE_SECONDS else Phase.FAULTY
    began = case.faults[-1].time if case.faults else now
    return Phase.SUSPECT if now - began < PATIENCE_SECONDS else Phase.FAULTY


def strikes(case: Case, now: float) -> int:
    """Return the number of faults in the last week."""
    return sum(now - change.time < STRIKE_SECONDS for change in case.faults)


def decide(case: Case, now: float, *, can_replace: bool) -> Decision:
    """Return the next step. `can_replace`: whether the platform creates the machines."""
    phase = phase_of(case, now)
    if phase is Phase.FOREIGN:
        return Decision(case.name, phase, Step.NONE, _foreign(case))
    if phase is not Phase.FAULTY:
        return Decision(case.name, phase, *STEPS[phase])
    if (count := strikes(case, now)) >= STRIKES:
        return Decision(case.name, phase, Step.QUARANTINE, f"{count} faults in a week")
    kind = fault(case.reason) or ""
    ladder = [step for step in LADDERS.get(kind, LADDER) if can_replace or step is not Step.REPLACE]
    tried = len(case.attempts)
    if tried >= len(ladder):
        done = ", ".join(action.step for action in case.attempts) or "no step is possible"
        return Decision(case.name, phase, Step.QUARANTINE, f"the fault remains after all steps: {done}")
    return Decision(case.name, phase, ladder[tried], f"step {tried + 1} of {len(ladder)} for the fault '{kind}'")


def _foreign(case: Case) -> str:
    """Explain who took a node out of service for a reason that is not a fault."""
    if case.reason == ROLL:
        return f"`yard roll` is replacing the machines of group {case.group}; `yard roll {case.group}` continues it"
    if case.reason.startswith("TY:"):
        return "this project took the node out of service for an update or an event; the node returns automatically"
    who = f"{case.set_by} set this state" if case.set_by else "this state was set"
    said = "with this reason" if case.reason else "without a reason"
    back = f"`yard ssh --admin -- sudo scontrol update nodename={case.name} state=resume`"
    return f"{who} {said}, which is not a fault that yard repairs; to return the node to service, run {back}"
