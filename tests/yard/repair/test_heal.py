"""The next repair step, `yard heal` with a fake head, and with the real engine on a simulated cloud."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import WholeStack, whole_stack
from tests.yard.conftest import MakeProgram
from trainyard.errors import RemoteError, StackError
from trainyard.faults import Change
from trainyard.outputs import Cluster, read_outputs
from yard.repair import heal as repairs
from yard.repair.heal import NEEDS_A_PERSON, HealRequest, explain, heal, install_timer, lock
from yard.repair.steps import (
    PATIENCE_SECONDS,
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
    with_stopped,
)
from yard.run import jobs
from yard.run.schedulers import Slurm
from yard.stack import pulumi
from yard.stack.workspace import Machine

DISK, GONE = "TY:disk-full: / is full", "TY:gone: no answer for 15 s"
NOW = 10_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NO_LIMIT = Limits(None, None)
START = "`pulumi up -s local --refresh`"


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
        (case(DISK, "drained", HOUR, (9 * DAY, "replace"), (8 * DAY, "reboot")), Phase.FAULTY, Step.REBOOT),
        (case("TY:munge: munged is not running", "drained", HOUR, (2 * HOUR, "reboot")), Phase.FAULTY, Step.REBOOT),
        (case(DISK, "drained", 2 * HOUR, (HOUR, "reboot"), (20 * MINUTE, "replace")), Phase.FAULTY, Step.QUARANTINE),
        (case(GONE, "down*"), Phase.FAULTY, Step.REPLACE),
        (case("TY:bandwidth: alone: 3 GB/s"), Phase.FAULTY, Step.REPLACE),
    ],
)
def test_state_machine(found: Case, phase: Phase, step: Step) -> None:
    decision = decide(found, NOW, can_replace=True, start=START)
    assert (decision.phase, decision.step) == (phase, step)
    assert decision.why
    assert ("then run `yard undrain`" in decision.why) is (phase is Phase.QUARANTINED)


def test_third_fault_in_a_week_leads_to_quarantine() -> None:
    changes = [Change(NOW - age * DAY, reason) for age, reason in ((6, DISK), (5.9, ""), (3, GONE), (2.9, ""))]
    found = replace(case(DISK), changes=(*changes, Change(NOW - HOUR, DISK)))
    assert strikes(found, NOW) == 3
    assert decide(found, NOW, can_replace=True, start=START).step is Step.QUARANTINE
    assert strikes(found, NOW + 2 * DAY) == 2


def test_change_of_the_reason_is_the_same_fault() -> None:
    found = replace(case(DISK), changes=(Change(NOW - DAY, "not responding"), Change(NOW - HOUR, DISK)))
    assert strikes(found, NOW) == 1


def test_existing_hosts_are_not_replaced() -> None:
    assert decide(case(GONE, "down*"), NOW, can_replace=False, start=START).step is Step.QUARANTINE
    assert decide(case(DISK), NOW, can_replace=False, start=START).step is Step.REBOOT


def test_a_lost_node_can_be_started_or_replaced_at_once() -> None:
    lost = decide(case(GONE, "down*", MINUTE), NOW, can_replace=True, start=START).why
    assert (
        f"if the machine has stopped, start it with {START}; otherwise run `yard doctor` or wait; "
        "`yard replace n` does not wait" in lost
    )
    assert START not in decide(case(DISK, "drained", MINUTE), NOW, can_replace=True, start=START).why
    host = decide(case(GONE, "down*", MINUTE), NOW, can_replace=False, start=START).why
    assert START in host
    assert "yard replace" not in host


def test_a_stopped_machine_must_be_started() -> None:
    lost, healthy = case(GONE, "down*", MINUTE), case("", "idle")
    for one in (lost, healthy):
        [decision] = with_stopped([decide(one, NOW, can_replace=True, start=START)], {one.name: "start it"})
        assert (decision.phase, decision.step, decision.why) == (Phase.FAULTY, Step.START, "start it")
        [kept] = with_stopped([decide(one, NOW, can_replace=True, start=START)], {"other": "start it"})
        assert kept.step in {Step.WAIT, Step.NONE}


def plan(found: list[Case], limits: Limits = NO_LIMIT) -> list[Decision]:
    return limit([decide(one, NOW, can_replace=True, start=START) for one in found], found, limits, NOW)


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


PLAN, PERFORM, AUTO = HealRequest(), HealRequest(perform=True), HealRequest(auto=True)


class Head:
    """A head with the given states, history and record of repairs. Calls are recorded."""

    def __init__(self, cluster: Cluster, states: dict[str, tuple[str, str]], ago: float = 3600.0) -> None:
        since = time.time() - ago
        self.history = {name: [{"time": since, "reason": reason}] for name, (_, reason) in states.items() if reason}
        self.record, self.calls = "", list[str]()
        self.authors = ""
        """Lines of sinfo: the user who set a node's state, and the time."""
        self.stack: Any = type("Stack", (), {"name": "local", "cluster": cluster})()

    def run(self, line: str, *, stdin: bytes = b"", admin: bool = False) -> str:
        if line == "true":
            return ""
        if "tee -a" in line:
            assert admin
            self.record += line.split("'")[1] + "\n"
        elif "scontrol" in line:
            assert admin
            self.calls.append(line)
        elif "===heal===" in line:
            parts = (json.dumps({"history": self.history}), self.record, self.authors)
            return "\n===heal===\n".join(parts)
        return json.dumps({"history": self.history})

    def replace(self, stack: str, urns: list[str]) -> int:
        self.calls.append(f"replace in {stack}: {urns}")
        return 0

    def host(self, name: str | None, *, admin: bool = False) -> str:
        return f"{name or 'head'}-admin" if admin else str(name)

    def argv(self, line: str, host: str) -> list[str]:
        if " flock " in line:
            assert host == "head-admin"
            return ["bash", "-c", line.removeprefix("sudo -n ")]
        self.calls.append(f"{host}: {line}")
        return ["true"]


@pytest.fixture
def start(wide: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that creates a head. `changed` has the states of nodes that are not idle."""

    def make(changed: dict[str, tuple[str, str]], ago: float = 3600.0, **changes: Any) -> Head:
        cluster = replace(wide, state_dir=str(tmp_path), **changes)
        states = {node.name: ("idle", "") for node in cluster.nodes} | changed
        head = Head(cluster, states, ago)
        monkeypatch.setattr(Slurm, "nodes", lambda *_: states)
        monkeypatch.setattr(repairs, "wait_for_pulumi", lambda _: None)
        monkeypatch.setattr(
            repairs, "machines", lambda _, names: {names[0]: Machine(urn=f"urn:{names[0]}", created="")}
        )
        monkeypatch.setattr(repairs, "replace_resources", head.replace)
        return head

    return make


def steps(head: Head) -> list[dict[str, Any]]:
    return [json.loads(line) for line in head.record.splitlines()]


REBOOT, REPLACE = ["yard-gpu-1-admin: sudo -n systemctl reboot"], ["replace in local: ['urn:yard-gpu-1']"]
QUARANTINE = [
    "sudo -n scontrol update nodename=yard-gpu-1 state=drain "
    "reason='TY:quarantine: the fault remains after all steps: no step is possible'"
]


@pytest.mark.parametrize(
    ("state", "changes", "request_", "calls"),
    [
        (("drained", DISK), {}, PLAN, []),
        (("drained", DISK), {}, PERFORM, REBOOT),
        (("down*", GONE), {}, PERFORM, REPLACE),
        (("down*", GONE), {}, replace(PERFORM, max_usd_per_hour=10.0), []),
        (("down*", GONE), {"provider": "hosts"}, PERFORM, QUARANTINE),
    ],
)
def test_the_next_step_is_recorded_and_performed(  # noqa: PLR0913, PLR0917  (the table's columns)
    state: tuple[str, str],
    changes: dict[str, Any],
    request_: HealRequest,
    calls: list[str],
    start: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = start({"yard-gpu-1": state}, **changes)
    # The second run does not repeat a step, because the first may still take effect.
    for _ in range(1 if calls == QUARANTINE else 2):
        assert heal(head, request_, as_json=False) == 0
        assert head.calls == calls
    assert [row["node"] for row in steps(head)] == ["yard-gpu-1"] * len(calls)
    assert ("nothing was changed" in capsys.readouterr().out) is (request_ is PLAN)


def test_healthy_cluster_needs_no_repair(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert heal(start({}), PERFORM, as_json=False) == 0
    assert capsys.readouterr().out.startswith("all 4 nodes are in service, according to their last checks")


def test_explanation_contains_history_and_reason(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head = start({"yard-gpu-1": ("drained", DISK)}, ago=60.0)
    explain(head, "yard-gpu-1", as_json=False)
    printed = capsys.readouterr().out
    assert f" UTC  {DISK}" in printed
    assert "phase suspect, 1 of 3 strikes" in printed
    assert "the fault may end by itself within 10 minutes; `yard replace yard-gpu-1` does not wait" in printed
    explain(head, "yard-gpu-1", as_json=True)
    assert json.loads(capsys.readouterr().out)["step"] == "wait"


def test_head_and_clusters_without_slurm_are_refused(start: Any) -> None:
    with pytest.raises(StackError, match="runs no jobs"):
        explain(start({}), "yard-head", as_json=False)
    with pytest.raises(StackError, match="needs Slurm"):
        heal(start({}, scheduler="none"), PLAN, as_json=False)


def test_history_of_all_nodes_is_sorted_by_time(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head = start({"yard-gpu-1": ("drained", DISK)})
    head.history["yard-gpu-0"] = [{"time": 0.0, "reason": GONE}, {"time": 60.0, "reason": ""}]
    jobs.list_nodes(head, as_json=False, history=True)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[:2] == [f"1970-01-01 00:00:00  yard-gpu-0  {GONE}", "1970-01-01 00:01:00  yard-gpu-0  in service"]
    assert lines[2].endswith(f"yard-gpu-1  {DISK}")
    jobs.list_nodes(head, as_json=True, history=True)
    assert len(json.loads(capsys.readouterr().out)) == 3
    head.history.clear()
    jobs.list_nodes(head, as_json=False, history=True)
    assert "no worker has left service" in capsys.readouterr().out


def test_a_drain_by_a_person_names_the_person_and_the_fix(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = "yard-gpu-0", "yard-gpu-1", "yard-gpu-3"
    operators = ("drained", "alice@laptop: Not responding")
    head = start({first: ("drained", "bad cable"), second: ("drained", ""), third: operators})
    head.authors = f"{first}|root|2026-11-24T03:00:00\n{second}|slurm|Unknown\n"
    assert heal(head, PLAN, as_json=True) == 0
    why = {row["node"]: row["why"] for row in json.loads(capsys.readouterr().out)}
    assert why[first].startswith("this state was set by root, 2026-11-24T03:00:00, with this reason, ")
    assert why[first].endswith(f"run `yard undrain {first}`")
    assert why[third] == f"alice@laptop drained the node; to return the node to service, run `yard undrain {third}`"
    assert why[second].startswith("this state was set without a reason, ")
    assert why["yard-gpu-2"] == "in service"


XID = "TY:gpu-xid: Xid 79, GPU has fallen off the bus"


@pytest.mark.parametrize(("repair", "code"), [("auto", 0), ("ask", NEEDS_A_PERSON)])
def test_the_stack_file_decides_about_automatic_repairs(
    repair: str, code: int, start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    head = start({"yard-gpu-1": ("drained", XID)}, repair=repair)
    assert heal(head, AUTO, as_json=False) == code
    assert len(head.calls) == len(steps(head)) == (1 if repair == "auto" else 0)
    assert ("contains `repair: ask`" in capsys.readouterr().out) is (repair == "ask")
    # While the node reboots, nothing is due. A healthy cluster needs no person.
    assert heal(head, AUTO, as_json=False) == code
    assert heal(start({}, repair=repair), AUTO, as_json=False) == 0


def test_an_epidemic_is_not_repaired_automatically(start: Any) -> None:
    sick = {f"yard-gpu-{index}": ("drained", XID) for index in range(3)}
    head = start(sick, repair="auto")
    assert heal(head, AUTO, as_json=False) == NEEDS_A_PERSON
    assert (head.calls, head.record) == ([], "")


def test_two_repairs_do_not_overlap(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head = start({"yard-gpu-1": ("drained", DISK)}, repair="auto")
    with lock(head) as is_ours:
        assert is_ours
        assert heal(head, AUTO, as_json=False) == 0
        assert "another `yard heal` is repairing this cluster" in capsys.readouterr().out
        with pytest.raises(StackError, match="another `yard heal`"):
            heal(head, PERFORM, as_json=False)
        assert head.calls == []
    assert heal(head, AUTO, as_json=False) == 0
    assert len(head.calls) == 1


def test_a_lock_that_cannot_be_taken_is_an_error(start: Any) -> None:
    head = start({})
    head.stack.cluster = replace(head.stack.cluster, state_dir="/nowhere")
    with pytest.raises(RemoteError, match="cannot be taken"):
        heal(head, PERFORM, as_json=False)


def test_the_timer_runs_the_repair(
    program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    systemctl = program("systemctl", "")
    install_timer("team/trainyard/big", 90.0)
    name = "trainyard-heal-team-trainyard-big"
    assert systemctl.calls == ["--user daemon-reload", f"--user enable --now {name}.timer"]
    units = [tmp_path / "systemd/user" / f"{name}.{kind}" for kind in ("service", "timer")]
    words = shlex.split(units[0].read_text().partition("ExecStart=")[2])
    assert words[1:] == ["-m", "yard", "heal", "--auto", "--stack", "team/trainyard/big", "--max-usd-per-hour", "90"]
    assert "enable-linger" in capsys.readouterr().out
    if shutil.which("systemd-analyze"):
        verified = subprocess.run(
            ["systemd-analyze", "--user", "verify", *map(str, units)], capture_output=True, text=True, check=False
        )
        assert name not in verified.stderr
    program("systemctl", "echo no bus >&2; exit 1")
    with pytest.raises(StackError, match=r"daemon-reload` failed: no bus\. The units are in"):
        install_timer("big", None)


NODE, OTHER = "opt-gpu-0", "opt-gpu-1"


@pytest.mark.engine
@pytest.mark.parametrize("repair", ["auto", pytest.param("ask", marks=pytest.mark.full)])
def test_an_xid_replaces_exactly_one_machine(repair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = whole_stack(tmp_path)
    stack.put("azure-a100", repair=repair)
    done = stack.up()
    assert done.code == 0, done
    head = faulty_head(stack, tmp_path, monkeypatch)
    created = machine_ids(stack)
    expected = NEEDS_A_PERSON if repair == "ask" else 0
    assert heal(head, AUTO, as_json=False) == expected
    assert head.calls == ([f"{NODE}-admin: sudo -n systemctl reboot"] if repair == "auto" else [])
    # The reboot does not end the fault.
    rows = map(json.loads, head.record.splitlines())
    head.record = "".join(json.dumps(row | {"time": row["time"] - PATIENCE_SECONDS}) + "\n" for row in rows)
    assert heal(head, AUTO, as_json=False) == expected
    changed = {name for name, found in machine_ids(stack).items() if found != created[name]}
    assert changed == ({NODE} if repair == "auto" else set())
    # While the new machine boots, nothing is due.
    assert heal(head, AUTO, as_json=False) == expected


def faulty_head(stack: WholeStack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a fake head of the stack. Slurm has drained NODE because of an Xid."""
    cluster = replace(read_outputs(stack.outputs()["cluster"]), state_dir=str(folder))
    states = {node.name: ("idle", "") for node in cluster.nodes} | {NODE: ("drained", XID)}
    head = Head(cluster, states)
    # A qualified name has no stack file in the checkout, so yard runs pulumi in the current folder.
    head.stack.name = "organization/small/test"
    monkeypatch.chdir(stack.folder)
    monkeypatch.setattr(Slurm, "nodes", lambda *_: states)
    monkeypatch.setattr(pulumi, "environment", lambda **_: dict(stack.environment))
    monkeypatch.setattr("yard.stack.pulumi.project.exists", lambda: False)
    return head


def machine_ids(stack: WholeStack) -> dict[str, Any]:
    return {name: stack.record(name).outputs["vmId"] for name in (NODE, OTHER, "opt-head")}
