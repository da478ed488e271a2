"""Tests for the scheduling options of each kind of capacity."""

from __future__ import annotations

import pytest

from components.platforms.gcp.nodes import scheduling
from components.platforms.gcp.spec import families, family_of

A2, A4, N2 = (families()[name] for name in ("a2-highgpu", "a4-highgpu", "n2-standard"))


def test_an_on_demand_machine_is_restarted() -> None:
    options = scheduling(A2, 8, "on_demand")
    assert (options.provisioning_model, options.automatic_restart) == ("STANDARD", True)
    assert options.instance_termination_action is None


def test_a_machine_of_a_compact_group_is_not_restarted() -> None:
    options = scheduling(N2, 0, "on_demand", compact=True)
    assert (options.automatic_restart, options.on_host_maintenance) == (False, "TERMINATE")


def test_an_evicted_spot_machine_is_stopped() -> None:
    options = scheduling(A2, 8, "spot")
    assert (options.provisioning_model, options.preemptible, options.automatic_restart) == ("SPOT", True, False)
    assert options.instance_termination_action == "STOP"


def test_a_machine_of_a_shared_reservation_is_standard() -> None:
    assert scheduling(A2, 8, "reservation").provisioning_model == "STANDARD"


def test_a_machine_of_a_dense_reservation_is_bound_to_it() -> None:
    options = scheduling(A4, 8, "reservation")
    assert options.provisioning_model == "RESERVATION_BOUND"
    assert options.instance_termination_action == "DELETE"


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("kind", ["on_demand", "spot", "reservation"])
def test_gpu_machines_never_migrate(kind: str, compact: bool) -> None:
    for family in families().values():
        assert scheduling(family, 8, kind, compact=compact).on_host_maintenance == "TERMINATE"


def test_an_on_demand_machine_without_gpus_migrates() -> None:
    assert scheduling(N2, 0, "on_demand").on_host_maintenance == "MIGRATE"


def test_family_of_a_machine_type_ends_at_its_last_hyphen() -> None:
    assert family_of("a3-megagpu-8g").name == "a3-megagpu"
