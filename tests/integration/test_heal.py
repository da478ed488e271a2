"""`yard heal` on a cluster: a worker with a fault that stays is rebooted, replaced and quarantined."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

import pytest

from tests.integration.project import Project, wait_until
from tests.integration.test_cluster import HEAD, SECOND, slurm_states
from yard.heal.ladder import PATIENCE_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.full]

REASON = "TY:lamp: the red lamp is on"
"""A fault that no check of the nodes knows, so it never ends by itself."""
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
    cluster.on(HEAD, f"sudo sh -c {shlex.quote(command)}")


def plan(cluster: Project) -> tuple[str, str]:
    """Return phase and step of the second worker."""
    (row,) = (row for row in cluster.yard_json("heal") if row["node"] == SECOND)
    return row["phase"], row["step"]


def boot_id(cluster: Project) -> str:
    return cluster.on(SECOND, "cat /proc/sys/kernel/random/boot_id", check=False).strip()


def is_up(cluster: Project) -> bool:
    """Whether the worker has registered with slurmctld since it was drained."""
    return slurm_states(cluster)[SECOND] == "drained"


def test_fault_that_stays_ends_in_quarantine(cluster: Project) -> None:
    cluster.on(HEAD, f"sudo scontrol update nodename={SECOND} state=drain reason='{REASON}'")
    wait_until("the phase", 30, lambda: plan(cluster) == ("suspect", "wait"))
    let_time_pass(cluster)
    assert plan(cluster) == ("faulty", "reboot")
    assert "nothing was changed" in cluster.yard("heal").out

    before = boot_id(cluster)
    cluster.yard("heal", "--perform")
    wait_until("the reboot", 300, lambda: boot_id(cluster) not in {before, ""})
    wait_until("the worker", 300, lambda: is_up(cluster))
    assert plan(cluster) == ("repairing", "wait")

    let_time_pass(cluster)
    assert plan(cluster) == ("faulty", "replace")
    pid = cluster.pid(SECOND)
    cluster.yard("heal", "--perform", timeout=900)
    assert cluster.pid(SECOND) != pid
    assert is_up(cluster)
    let_time_pass(cluster)
    cluster.yard("heal", "--perform")
    explained = cluster.yard("heal", "--explain", SECOND).out
    assert [line.split("repair: ")[1] for line in explained.splitlines() if "repair: " in line] == [
        "reboot",
        "replace",
        "quarantine",
    ]
    assert "phase quarantined" in explained

    cluster.on(HEAD, f"sudo scontrol update nodename={SECOND} state=resume")
    wait_until("the service", 60, lambda: slurm_states(cluster)[SECOND] == "idle")
    assert plan(cluster)[1] == "none"
