"""The repair service: spares, lost nodes and the history of nodes, with a fake scontrol."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from repair.service import KEPT, NO_SLURMD, answering, load_history

from tests.cloud_init.repair.repair_site import Head
from trainyard.faults import Change

HOLD = (
    "create reservation reservationname=spares-a nodes={} starttime=now duration=UNLIMITED users=root flags=IGNORE_JOBS"
)
LOST = "update nodename={} state=down reason=TY:gone: no answer for 15 s"


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_spare_is_held_back_once(head: Head) -> None:
    assert head.run() == [HOLD.format("a-2")]
    assert head.run(30) == []


def test_group_without_spares_has_no_reservation(tmp_path: Path) -> None:
    assert Head(tmp_path, spares=0).run(30) == []


def test_idle_nodes_become_spares_before_busy_nodes(head: Head) -> None:
    head.slurm.states |= {"a-1": "ALLOCATED", "a-2": "MIXED+COMPLETING"}
    assert head.run() == [HOLD.format("a-0")]


def test_busy_node_is_held_if_no_node_is_idle(head: Head) -> None:
    head.slurm.states |= dict.fromkeys(head.slurm.states, "ALLOCATED")
    assert head.run() == [HOLD.format("a-2")]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "ALLOCATED+DRAIN", "IDLE+RESERVED+NOT_RESPONDING"])
def test_unusable_node_is_replaced_by_the_spare(head: Head, state: str) -> None:
    head.run()
    head.slurm.states["a-0"] = state
    assert head.run() == ["delete reservationname=spares-a"]
    assert head.run(30) == []


def test_repaired_node_becomes_the_spare(head: Head) -> None:
    head.run()
    head.slurm.states |= {"a-0": "IDLE+DRAIN"}
    head.run()
    head.slurm.states |= {"a-0": "IDLE", "a-1": "ALLOCATED", "a-2": "ALLOCATED"}
    assert head.run() == [HOLD.format("a-0")]


def test_faulty_spare_leaves_the_reservation(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=2)
    assert head.run() == [HOLD.format("a-1,a-2")]
    head.slurm.states["a-2"] = "IDLE+DRAIN"
    assert head.run() == ["update reservationname=spares-a nodes=a-1"]


def test_spares_are_free_while_the_gate_runs(head: Head) -> None:
    head.run()
    with (head.folder / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert head.run() == ["delete reservationname=spares-a"]
        head.alive.discard("a-0")
        head.slurm.states["a-0"] = "DOWN+NOT_RESPONDING"
        assert head.run(60) == []
        assert load_history(head.folder / "repair.json") == {}
    head.alive.add("a-0")
    head.slurm.states["a-0"] = "IDLE"
    assert head.run() == [HOLD.format("a-2")]


def test_reservation_of_a_removed_group_is_deleted(head: Head) -> None:
    head.slurm.held["spares-old"] = "old-0"
    assert "delete reservationname=spares-old" in head.run()


def test_lost_node_is_set_down_and_the_spare_is_released(head: Head) -> None:
    head.run(30)
    head.alive.discard("a-0")
    assert head.run(12) == []
    assert head.run(9) == [LOST.format("a-0"), "delete reservationname=spares-a"]
    assert head.run(60) == []


def test_node_that_never_answered_is_not_lost(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0, alive=set())
    assert head.run(120) == []


@pytest.mark.parametrize("seconds", [30, 600])
def test_outage_of_the_head_ends_no_job(tmp_path: Path, seconds: int) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.alive.clear()
    assert head.run(seconds) == []
    head.alive = {"a-1"}
    assert head.run(12) == [], "the other workers may need some seconds until they answer again"
    assert head.run(9) == []
    assert head.run(45) == [LOST.format("a-0"), LOST.format("a-2")]


def test_freeze_of_the_head_ends_no_job(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.now += 600
    head.alive = {"a-1", "a-2"}
    assert head.run(6) == []
    assert LOST.format("a-0") in head.run(15)


def test_many_silent_nodes_are_lost_later(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.alive = {"a-1"}
    assert head.run(60) == []
    assert head.run(6) == [LOST.format("a-0"), LOST.format("a-2")]


def test_node_lost_before_a_restart_is_set_down(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0, alive={"a-1", "a-2"})
    assert head.run(60) == []
    head.slurm.states["a-0"] = "ALLOCATED+NOT_RESPONDING"
    assert head.run(6) == [LOST.format("a-0")]


def test_node_behind_a_firewall_is_set_down_only_once(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.alive.discard("a-0")
    assert LOST.format("a-0") in head.run(30)
    head.slurm.states["a-0"] = "IDLE"
    assert head.run(120) == []
    head.alive.add("a-0")
    head.run(3)
    head.alive.discard("a-0")
    assert head.run(30) == [LOST.format("a-0")]


def test_node_whose_slurmd_is_silent_is_drained(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.slurm.states["a-0"] = "ALLOCATED+NOT_RESPONDING"
    assert head.run(60) == []
    assert head.run(12) == [f"update nodename=a-0 state=drain reason={NO_SLURMD}"]
    assert head.run(60) == []


@pytest.mark.parametrize("state", ["DOWN+NOT_RESPONDING", "IDLE+DRAIN+NOT_RESPONDING"])
def test_node_out_of_service_is_not_drained(tmp_path: Path, state: str) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.slurm.states["a-0"], head.slurm.reasons["a-0"] = state, "bad cable"
    assert head.run(120) == []


def test_node_that_has_never_registered_is_not_drained(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.slurm.states["a-0"], head.slurm.unregistered = "IDLE+NOT_RESPONDING", {"a-0"}
    assert head.run(120) == []


def test_drained_lost_node_keeps_its_reason(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "ALLOCATED+DRAIN", "bad cable"
    head.alive.discard("a-0")
    assert head.run(30) == ["update nodename=a-0 state=down reason=bad cable"]
    head.slurm.states["a-1"], head.slurm.reasons["a-1"] = "IDLE+DRAIN", "TY:roll"
    head.alive = {"a-2"}
    assert head.run(60) == []


def test_history_survives_a_restart(head: Head) -> None:
    head.run()
    head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "IDLE+DRAIN", "TY:disk-full: / is full"
    head.run()
    out = head.now
    head.slurm.states["a-0"] = "IDLE"
    head.run()
    head.restart()
    head.run()
    found = load_history(head.folder / "repair.json")
    assert found == {"a-0": (Change(out, "TY:disk-full: / is full"), Change(out + 3, ""))}
    assert (head.folder / "repair.json").stat().st_mode & 0o777 == 0o644


def test_history_has_a_limit(head: Head) -> None:
    for number in range(KEPT + 5):
        head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "IDLE+DRAIN", f"reason {number}"
        head.run()
    assert len(load_history(head.folder / "repair.json")["a-0"]) == KEPT


@pytest.mark.parametrize(("spares", "most"), [(0, 5), (1, 40)])
def test_healthy_nodes_without_spares_are_listed_rarely(tmp_path: Path, spares: int, most: int) -> None:
    head = Head(tmp_path, spares=spares)
    listings: list[tuple[str, ...]] = []

    def control(*arguments: str) -> str | None:
        listings.append(arguments)
        return head.slurm(*arguments)

    head.service.control = control
    head.run(60)
    assert most - 2 <= len([words for words in listings if "show" in words]) <= most + 20 * spares
    head.alive.discard("a-0")
    assert any("state=down" in change for change in head.run(24))


def test_drained_node_is_recorded_within_the_quiet_interval(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0)
    head.run(30)
    head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "IDLE+DRAIN", "TY:disk-full: / is full"
    head.run(18)
    assert list(load_history(head.folder / "repair.json")) == ["a-0"]


def test_failed_scontrol_changes_nothing(head: Head) -> None:
    head.service.control = lambda *_: None
    assert head.run(60) == []


def test_refused_connection_is_an_answer() -> None:
    assert answering({"here": "127.0.0.1", "nowhere": "256.0.0.1"}) == {"here"}
