"""Verdicts, and the node's state in Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from health.node import Check, failed, load_checks, passed, unknown
from health.slurm import SlurmNode, decide, may_return, owner, parse
from health.verdicts import Ledger, load, save

from tests.cloud_init.health.health_site import BOOT

CHECKS = load_checks()
DISK, XID = CHECKS["disk-full"], CHECKS["gpu-xid"]
FULL = failed("/ is full")
REASON = "TY:disk-full: / is full"
LINE = "NodeName=n Arch=x86_64 State={state} ThreadsPerCore=1 Reason={reason} [root@2026-11-22T14:05:30] \n"


def reason(ledger: Ledger) -> str | None:
    """Return the drain reason."""
    return ledger.worst.reason if ledger.worst else None


def record(ledger: Ledger, check: Check, *outcomes: object) -> list[bool]:
    return [ledger.record(check, outcome, 1.0) for outcome in outcomes]  # type: ignore[arg-type]


def test_verdict_needs_consecutive_failures() -> None:
    ledger = Ledger(BOOT)
    assert record(ledger, DISK, FULL, passed(), FULL, unknown("slow"), FULL) == [False] * 5
    assert reason(ledger) is None
    assert record(ledger, DISK, FULL) == [True]
    assert reason(ledger) == REASON


def test_verdict_ends_after_consecutive_passes() -> None:
    ledger = Ledger(BOOT)
    record(ledger, DISK, FULL, FULL)
    assert record(ledger, DISK, passed(), unknown("slow"), passed(), passed()) == [False, False, False, True]
    assert ledger.worst is None
    assert [row["event"] for row in ledger.history] == ["begin", "end"]


def test_verdict_of_an_xid_ends_after_a_reboot(tmp_path: Path) -> None:
    ledger = Ledger(BOOT)
    assert record(ledger, XID, failed("Xid 79"), passed(), passed(), passed()) == [True, False, False, False]
    assert save(tmp_path / "ledger", ledger)
    later = load(tmp_path / "ledger", "another boot")
    assert record(later, XID, passed(), passed()) == [False, True]


def test_most_severe_verdict_gives_the_reason() -> None:
    ledger = Ledger(BOOT)
    record(ledger, CHECKS["rdma-errors"], failed("many"))
    assert reason(ledger) is None, "a note does not drain the node"
    record(ledger, DISK, FULL, FULL)
    record(ledger, XID, failed("Xid 79"))
    assert reason(ledger) == "TY:gpu-xid: Xid 79"
    ledger.clear("gpu-xid", 2.0)
    assert reason(ledger) == REASON


def test_damaged_ledger_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("{")
    assert load(tmp_path / "ledger", BOOT).verdicts == {}
    assert not save(Path("/proc/none/ledger"), Ledger(BOOT))


@pytest.mark.parametrize(
    ("state", "reason", "wanted", "action"),
    [
        ("IDLE", "none", REASON, "drain"),
        ("MIXED*", "none", REASON, "drain"),
        ("IDLE+DRAIN", REASON, REASON, None),
        ("IDLE", REASON, REASON, "drain"),  # Slurm has cleared the drain.
        ("IDLE+DRAIN", "TY:munge: munged is not running", REASON, "drain"),
        ("IDLE+DRAIN", "bad cable", REASON, None),
        ("IDLE+DRAIN", "TY:roll", REASON, None),
        ("IDLE+DRAIN", "TY:update", REASON, None),
        ("IDLE+DRAIN", "Kill task failed", REASON, None),
        ("DOWN", "Node unexpectedly rebooted", REASON, None),
        ("IDLE", "none", None, None),
        ("IDLE+DRAIN", REASON, None, "resume"),
        ("DOWN+DRAIN", REASON, None, "resume"),
        ("IDLE+DRAIN", "TY:munge: munged is not running", None, None),  # The munge check has not passed.
        ("IDLE+DRAIN", "bad cable", None, None),
        ("IDLE+DRAIN", "TY:roll", None, None),
        ("IDLE+DRAIN", "TY:update", None, None),
        ("IDLE+DRAIN", "TY:disk-full", None, None),
        ("DOWN", "Node unexpectedly rebooted", None, None),
    ],
)
def test_only_own_reasons_are_changed(state: str, reason: str, wanted: str | None, action: str | None) -> None:
    found = parse(LINE.format(state=state, reason=reason))
    assert found is not None
    assert found.reason == reason
    assert decide(found, wanted, CHECKS, {"disk-full"}) == action


def test_reasons_of_other_programs_have_no_owner() -> None:
    assert owner("TY:roll", CHECKS) is None
    assert owner("TY:nccl_pair: slow", CHECKS) is None
    assert parse("slurm_load_node error: Unable to contact slurm controller") is None
    assert parse("NodeName=n State=IDLE ThreadsPerCore=1\n") == SlurmNode("IDLE", "")


@pytest.mark.parametrize(
    ("state", "reason", "returned", "returned_if_new"),
    [
        ("DOWN", "Node unexpectedly rebooted", True, True),
        ("DOWN*", "Not responding", True, True),
        ("DOWN", "TY:gone: no answer for 15 s", True, True),
        ("IDLE+DRAIN", "TY:roll", False, True),
        ("IDLE+DRAIN", "TY:bandwidth: alone: 3 GB/s", False, True),
        ("IDLE+DRAIN", "TY:disk-full: / is full", False, False),
        ("DOWN+DRAIN", "bad cable", False, False),
        ("IDLE", "", False, False),
    ],
)
def test_a_booted_node_returns_for_some_reasons(state: str, reason: str, returned: bool, returned_if_new: bool) -> None:
    node = SlurmNode(state, reason)
    assert (may_return(node, is_new=False), may_return(node, is_new=True)) == (returned, returned_if_new)
