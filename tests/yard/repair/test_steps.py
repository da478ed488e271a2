"""The next repair step, its phases and its limits, as a table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.faults import Change
from yard.repair.steps import (
    Action,
    Case,
    Decision,
    Limits,
    Phase,
    Step,
    cases,
    decide,
    epidemics,
    limit,
    parse_actions,
    phase_of,
    strikes,
)

NOW = 10_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
DISK, GONE = "TY:disk-full: / is full", "TY:gone: no answer for 15 s"
NO_LIMIT = Limits(None, None)


def case(reason: str = DISK, state: str = "drained", ago: float = HOUR, *steps: tuple[float, str], **more: str) -> Case:
    """Return a node that got its reason `ago` seconds ago. `steps`: age and name of each repair."""
    name = more.get("name", "n")
    changes = (Change(NOW - ago, reason),) if reason else ()
    actions = tuple(Action(NOW - age, name, step, "disk-full") for age, step in steps)
    group = more.get("group", "a")
    return Case(name=name, group=group, state=state, reason=reason, changes=changes, actions=actions)


def returned(found: Case, ago: float) -> Case:
    return replace(found, state="idle", reason="", changes=(*found.changes, Change(NOW - ago, "")))


@pytest.mark.parametrize(
    ("found", "phase", "step"),
    [
        (case("", "idle"), Phase.HEALTHY, Step.NONE),
        (returned(case(DISK, "drained", DAY, (DAY - HOUR, "reboot")), 30 * MINUTE), Phase.PROBATION, Step.NONE),
        (returned(case(DISK, "drained", DAY, (DAY - HOUR, "reboot")), 2 * HOUR), Phase.HEALTHY, Step.NONE),
        (returned(case(DISK, "drained", DAY), 30 * MINUTE), Phase.HEALTHY, Step.NONE),
        (case("bad cable"), Phase.FOREIGN, Step.NONE),
        (case("TY:roll"), Phase.FOREIGN, Step.NONE),
        (case("", "drained"), Phase.FOREIGN, Step.NONE),
        (case("", "down*"), Phase.SUSPECT, Step.WAIT),
        (case("TY:quarantine: 3 faults in a week"), Phase.QUARANTINED, Step.NONE),
        (case(DISK, "drained", MINUTE), Phase.SUSPECT, Step.WAIT),
        (case(DISK, "draining", HOUR), Phase.DRAINING, Step.WAIT),
        (case(DISK, "drained", HOUR, (MINUTE, "reboot")), Phase.REPAIRING, Step.WAIT),
        (case(DISK), Phase.FAULTY, Step.REBOOT),
        (case(DISK, "drained", HOUR, (20 * MINUTE, "reboot")), Phase.FAULTY, Step.REPLACE),
        # The fault has returned within a week of a reboot, of a replacement, or later.
        (case(DISK, "drained", HOUR, (2 * HOUR, "reboot")), Phase.FAULTY, Step.REPLACE),
        (case(DISK, "drained", HOUR, (3 * HOUR, "reboot"), (2 * HOUR, "replace")), Phase.FAULTY, Step.REBOOT),
        (case(DISK, "drained", HOUR, (8 * DAY, "reboot")), Phase.FAULTY, Step.REBOOT),
        (case("TY:munge: munged is not running", "drained", HOUR, (2 * HOUR, "reboot")), Phase.FAULTY, Step.REBOOT),
        (
            case(DISK, "drained", 2 * HOUR, (HOUR, "reboot"), (20 * MINUTE, "replace")),
            Phase.FAULTY,
            Step.QUARANTINE,
        ),
        (case(GONE, "down*"), Phase.FAULTY, Step.REPLACE),
        (case("TY:bandwidth: alone: 3 GB/s"), Phase.FAULTY, Step.REPLACE),
    ],
)
def test_state_machine(found: Case, phase: Phase, step: Step) -> None:
    decision = decide(found, NOW, can_replace=True)
    assert (decision.phase, decision.step) == (phase, step)
    assert decision.why


def test_third_fault_in_a_week_leads_to_quarantine() -> None:
    changes = [Change(NOW - age * DAY, reason) for age, reason in ((6, DISK), (5.9, ""), (3, GONE), (2.9, ""))]
    found = replace(case(DISK), changes=(*changes, Change(NOW - HOUR, DISK)))
    assert strikes(found, NOW) == 3
    assert decide(found, NOW, can_replace=True).step is Step.QUARANTINE
    assert strikes(found, NOW + 2 * DAY) == 2


def test_change_of_the_reason_is_the_same_fault() -> None:
    found = replace(case(DISK), changes=(Change(NOW - DAY, "not responding"), Change(NOW - HOUR, DISK)))
    assert strikes(found, NOW) == 1


def test_existing_hosts_are_not_replaced() -> None:
    assert decide(case(GONE, "down*"), NOW, can_replace=False).step is Step.QUARANTINE
    assert decide(case(DISK), NOW, can_replace=False).step is Step.REBOOT


def plan(found: list[Case], limits: Limits = NO_LIMIT) -> list[Decision]:
    return limit([decide(one, NOW, can_replace=True) for one in found], found, limits, NOW)


def healthy(count: int, group: str = "a") -> list[Case]:
    return [case("", "idle", name=f"{group}-{number}", group=group) for number in range(count)]


_DONE = ((HOUR, "reboot"), (20 * MINUTE, "replace"))


@pytest.mark.parametrize(
    ("sick", "others", "steps"),
    [
        ([case(DISK, name="n-0"), case(GONE, "down*", name="n-1")], 8, [Step.REBOOT, Step.WAIT]),
        ([case(DISK, name=f"n-{number}") for number in range(4)], 56, [*[Step.REBOOT] * 3, Step.WAIT]),
        ([case(DISK, "drained", HOUR, (MINUTE, "reboot"), name="n-0"), case(DISK, name="n-1")], 8, [Step.WAIT] * 2),
        # A quarantine is not limited.
        (
            [case(DISK, "drained", 2 * HOUR, *_DONE, name=f"n-{number}") for number in range(3)],
            0,
            [Step.QUARANTINE] * 3,
        ),
    ],
)
def test_few_nodes_are_repaired_at_a_time(sick: list[Case], others: int, steps: list[Step]) -> None:
    found = [*sick, *healthy(others)]
    decisions = plan(found)[: len(sick)]
    assert [one.step for one in decisions] == steps
    assert all(f"of {len(found)} nodes" in one.why for one in decisions if one.why.startswith("reboot: "))


def test_node_is_repaired_three_times_a_day() -> None:
    steps = tuple((age * HOUR, "reboot") for age in (20, 15, 10))
    assert "repaired 3 times" in plan([case(DISK, "drained", HOUR, *steps)])[0].why
    assert plan([case(DISK, "drained", HOUR, *steps[1:])])[0].step is Step.REPLACE


def test_same_fault_on_many_nodes_stops_repairs() -> None:
    sick = [case(DISK, name=f"sick-{number}") for number in range(3)]
    found = [*sick, case(GONE, "down*", name="b-9", group="b"), *healthy(9), *healthy(9, "b")]
    assert epidemics(found) == {("a", "disk-full")}
    decisions = plan(found)
    assert [(one.step, one.epidemic) for one in decisions[:4]] == [(Step.WAIT, True)] * 3 + [(Step.REPLACE, False)]
    assert "a common cause is likely" in decisions[0].why


@pytest.mark.parametrize(
    "others",
    [
        [case(DISK, name="a-1"), case(GONE, "down*", name="a-2")],
        [case(DISK, name="a-1"), case(DISK, "drained", 3 * HOUR, name="a-2")],
        [case(DISK, name="a-1"), case(DISK, name="a-2"), *healthy(20)],
    ],
)
def test_few_slow_or_different_faults_are_no_epidemic(others: list[Case]) -> None:
    assert epidemics([case(DISK, name="a-0"), *others]) == set()


@pytest.mark.parametrize(
    ("limits", "step", "why"),
    [
        (Limits(None, 90.0), Step.REPLACE, "the fault 'gone' remains"),
        (Limits(100.0, 90.0), Step.REPLACE, "the fault 'gone' remains"),
        (Limits(80.0, 90.0), Step.WAIT, "the stack costs 90 $/h"),
        (Limits(80.0, None), Step.WAIT, "the price of the stack is unknown"),
    ],
)
def test_price_limits_replacements(limits: Limits, step: Step, why: str) -> None:
    (decision,) = plan([case(GONE, "down*")], limits)
    assert decision.step is step
    assert why in decision.why
    assert plan([case(DISK)], limits)[0].step is Step.REBOOT


def test_cases_join_state_history_and_repairs() -> None:
    record = '{"time": 5.0, "node": "n-1", "step": "reboot"}\n{"time": 4.0, "node": "n-0", "step": "reboot"}\n'
    history = {"history": {"n-1": [{"time": 1.0, "reason": DISK}]}}
    found = cases({"n-0": "a", "n-1": "a"}, {"n-1": ("drained", DISK)}, history, parse_actions(record))
    assert found[0] == Case(name="n-0", group="a", state="unknown", reason="", actions=(Action(4.0, "n-0", "reboot"),))
    assert found[1].faults == (Change(1.0, DISK),)
    assert found[1].attempts == (Action(5.0, "n-1", "reboot"),)
    assert phase_of(found[1], 6.0) is Phase.REPAIRING
