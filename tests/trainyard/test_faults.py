"""Reasons and states of nodes in Slurm."""

from __future__ import annotations

import pytest

from trainyard.faults import fault, is_epidemic, is_free, is_in_service, reason_for


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("TY:disk-full: / is full", "disk-full"),
        ("TY:gone: no answer for 15 s", "gone"),
        ("Not responding", "gone"),
        ("node unexpectedly rebooted", "gone"),
        (reason_for("bandwidth", "alone: 3 GB/s"), "bandwidth"),
        ("TY:event: the cloud announces Preempt", None),
        (reason_for("quarantine", "3 faults in a week"), None),
        ("TY:roll", None),
        ("bad cable", None),
        ("", None),
    ],
)
def test_reasons_have_a_kind_of_fault(reason: str, kind: str | None) -> None:
    assert fault(reason) == kind


@pytest.mark.parametrize(
    ("state", "in_service", "free"),
    [
        ("idle", True, False),
        ("allocated", True, False),
        ("mixed-", True, False),
        ("reserved", True, False),
        ("MIXED+COMPLETING", True, False),
        ("idle*", False, True),
        ("IDLE+NOT_RESPONDING", False, True),
        ("draining", False, False),
        ("draining*", False, False),
        ("drained", False, True),
        ("down*", False, True),
        ("maint", False, True),
        ("unknown", False, True),
    ],
)
def test_states_of_sinfo_and_scontrol(state: str, in_service: bool, free: bool) -> None:
    assert is_in_service(state) is in_service
    assert is_free(state) is free


@pytest.mark.parametrize(("faulty", "nodes", "expected"), [(1, 3, False), (2, 3, True), (2, 10, False), (3, 10, True)])
def test_many_faulty_nodes_have_a_common_cause(faulty: int, nodes: int, expected: bool) -> None:
    assert is_epidemic(faulty, nodes) is expected
