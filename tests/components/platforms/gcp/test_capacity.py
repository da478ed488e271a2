"""Tests for the scheduling options of each kind of capacity."""

from __future__ import annotations

import pytest

from components.platforms.gcp.nodes import scheduling
from components.platforms.gcp.spec import families, family_of


@pytest.mark.parametrize(
    ("family", "gpus", "kind", "compact", "expected"),
    [
        ("a2-highgpu", 8, "on_demand", False, ("STANDARD", "TERMINATE", True, None)),
        ("n2-standard", 0, "on_demand", False, ("STANDARD", "MIGRATE", True, None)),
        # A restart could place the machine outside the group.
        ("n2-standard", 0, "on_demand", True, ("STANDARD", "TERMINATE", False, None)),
        # An evicted machine is stopped, so that it can be started again.
        ("a2-highgpu", 8, "spot", False, ("SPOT", "TERMINATE", False, "STOP")),
        ("a2-highgpu", 8, "reservation", False, ("STANDARD", "TERMINATE", True, None)),
        # The machines of a dense reservation are bound to it.
        ("a4-highgpu", 8, "reservation", False, ("RESERVATION_BOUND", "TERMINATE", True, "DELETE")),
    ],
)
def test_scheduling_depends_on_family_and_capacity(
    family: str, gpus: int, kind: str, compact: bool, expected: tuple[str, str, bool, str | None]
) -> None:
    made = scheduling(families()[family], gpus, kind, compact=compact)
    action = made.instance_termination_action
    assert (made.provisioning_model, made.on_host_maintenance, made.automatic_restart, action) == expected
    assert made.preemptible is (kind == "spot")


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("kind", ["on_demand", "spot", "reservation"])
def test_gpu_machines_never_migrate(kind: str, compact: bool) -> None:
    for family in families().values():
        assert scheduling(family, 8, kind, compact=compact).on_host_maintenance == "TERMINATE"


def test_family_of_a_machine_type_ends_at_its_last_hyphen() -> None:
    assert family_of("a3-megagpu-8g").name == "a3-megagpu"
