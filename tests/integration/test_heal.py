"""`yard heal` on a cluster: a worker with a full disk or an Xid is rebooted and then replaced."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

import pytest

from tests.integration.project import HEAD, SECOND, Project, wait_until
from tests.integration.test_health import WRITE_XID
from yard.repair.heal import NEEDS_A_PERSON
from yard.repair.steps import PATIENCE_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.usefixtures("repaired")]

STATE = PurePosixPath("/var/lib/trainyard")
_EARLIER = f"""
import json, re
from pathlib import Path

state = Path("{STATE}")
history = json.loads((state / "repair.json").read_text())
for rows in history["history"].values():
    for row in rows:
        row["time"] -= {PATIENCE_SECONDS}
(state / "repair.json").write_text(json.dumps(history))
record = state / "heal.jsonl"
if record.exists():
    actions = [json.loads(line) for line in record.read_text().splitlines()]
    for action in actions:
        action["time"] -= {PATIENCE_SECONDS}
    record.write_text("".join(json.dumps(action) + "\\n" for action in actions))
"""
"""Moves all recorded times into the past, so that the test does not wait ten minutes after each step."""


def let_time_pass(cluster: Project) -> None:
    # The service keeps the history in memory.
    command = f"systemctl stop trainyard-repair; python3 -c {shlex.quote(_EARLIER)}; systemctl start trainyard-repair"
    cluster.as_root(HEAD, command)


def plan(cluster: Project) -> tuple[str, str]:
    """Return phase and step of the second worker."""
    (row,) = (row for row in cluster.yard_json("heal") if row["node"] == SECOND)
    return row["phase"], row["step"]


def state(cluster: Project) -> str:
    return cluster.states()[SECOND]


def test_fault_that_survives_a_reboot_ends_with_a_new_machine(cluster: Project) -> None:
    cluster.on(SECOND, "sudo fallocate -l $(($(stat -f -c '%a * %S' /) - 100000000)) /var/filler")
    wait_until("the drain", 120, lambda: state(cluster) == "drained")
    assert plan(cluster) == ("suspect", "wait")
    # While nothing happens, the service lists the nodes every 15 s.
    history = f"sudo cat {STATE}/repair.json"
    wait_until("the history", 60, lambda: SECOND in cluster.on(HEAD, history, check=False))
    let_time_pass(cluster)
    assert plan(cluster) == ("faulty", "reboot")
    assert "nothing was changed" in cluster.yard("heal").out

    before = cluster.boot_id(SECOND)
    cluster.yard("heal", "--perform")
    wait_until("the reboot", 300, lambda: cluster.boot_id(SECOND) not in {before, ""})
    ready = f'"boot_id":"{cluster.boot_id(SECOND)}","state":"ready"'
    wait_until("the worker", 300, lambda: ready in cluster.on(SECOND, f"cat {STATE}/status.json", check=False))
    wait_until("the drained worker", 60, lambda: state(cluster) == "drained")
    assert plan(cluster) == ("repairing", "wait")

    let_time_pass(cluster)
    assert plan(cluster) == ("faulty", "replace")
    pid = cluster.pid(SECOND)
    cluster.yard("heal", "--perform", timeout=900)
    assert cluster.pid(SECOND) != pid
    wait_until("the service", 60, lambda: state(cluster) == "idle")
    assert plan(cluster) == ("probation", "none")
    explained = cluster.yard("heal", "--explain", SECOND).out
    repairs = [line.split("repair: ")[1] for line in explained.splitlines() if "repair: " in line]
    assert repairs == ["reboot", "replace"]
    assert "TY:disk-full: " in explained


def test_an_xid_leads_to_a_new_machine_without_a_person(cluster: Project) -> None:
    # The faults of other tests do not count as strikes.
    cluster.on(HEAD, f"sudo sh -c 'systemctl stop trainyard-repair; rm -f {STATE}/repair.json {STATE}/heal.jsonl'")
    cluster.on(HEAD, "sudo systemctl start trainyard-repair")
    # The stack file says `ask`, so the timer's command changes nothing.
    cluster.as_root(SECOND, WRITE_XID)
    wait_until("the drain", 60, lambda: state(cluster) == "drained")
    history = f"sudo cat {STATE}/repair.json"
    wait_until("the history", 60, lambda: "TY:gpu-xid" in cluster.on(HEAD, history, check=False))
    let_time_pass(cluster)
    pid, before = cluster.pid(SECOND), cluster.boot_id(SECOND)
    asked = cluster.yard("heal", "--auto", check=False)
    assert asked.code == NEEDS_A_PERSON
    assert "contains `repair: ask`" in asked.out
    assert (cluster.pid(SECOND), cluster.boot_id(SECOND)) == (pid, before)

    cluster.edit(lambda spec: spec.update(repair="auto"))
    try:
        cluster.stack("up", timeout=900, check=False)
        # The reboot ends the verdict, and the Xid returns.
        cluster.yard("heal", "--auto")
        wait_until("the reboot", 300, lambda: cluster.boot_id(SECOND) not in {before, ""})
        wait_until("the service", 300, lambda: state(cluster) == "idle")
        cluster.as_root(SECOND, WRITE_XID)
        wait_until("the drain", 60, lambda: state(cluster) == "drained")
        wait_until("the plan", 60, lambda: plan(cluster) == ("suspect", "wait"))
        let_time_pass(cluster)
        assert plan(cluster) == ("faulty", "replace")
        cluster.yard("heal", "--auto", timeout=900)
        assert cluster.pid(SECOND) != pid
        wait_until("the service", 60, lambda: state(cluster) == "idle")
        new = cluster.pid(SECOND)
        cluster.yard("heal", "--auto")
        assert cluster.pid(SECOND) == new
    finally:
        cluster.edit(lambda spec: spec.pop("repair"))
        cluster.stack("up", timeout=900)
