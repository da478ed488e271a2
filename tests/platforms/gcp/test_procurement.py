"""The table of ways to buy, row by row, as clouds' rules have it."""

from __future__ import annotations

import pytest

from components.platforms.gcp.families import families, family_of
from components.platforms.gcp.procurement import Wish, procurement

A2, A4, N2 = (families()[name] for name in ("a2-highgpu", "a4-highgpu", "n2-standard"))


def test_on_demand() -> None:
    bought = procurement(A2, 8, Wish(kind="on_demand"))
    assert (bought.provisioning_model, bought.automatic_restart, bought.termination_action) == ("STANDARD", True, None)


def test_on_demand_and_compact_does_not_restart_elsewhere() -> None:
    bought = procurement(N2, 0, Wish(kind="on_demand", compact=True))
    assert (bought.automatic_restart, bought.on_host_maintenance) == (False, "TERMINATE")


def test_spot_keeps_its_disk() -> None:
    bought = procurement(A2, 8, Wish(kind="spot"))
    assert (bought.provisioning_model, bought.preemptible, bought.automatic_restart) == ("SPOT", True, False)
    assert bought.termination_action == "STOP"


def test_a_shared_reservation_is_an_affinity() -> None:
    bought = procurement(A2, 8, Wish(kind="reservation", reservation="r"))
    assert (bought.provisioning_model, bought.reservation) == ("STANDARD", "r")


def test_a_dense_reservation_binds() -> None:
    bought = procurement(A4, 8, Wish(kind="reservation", reservation="r"))
    assert (bought.provisioning_model, bought.reservation) == ("RESERVATION_BOUND", "r")
    assert bought.termination_action == "DELETE"


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("kind", ["on_demand", "spot", "reservation"])
def test_no_gpu_ever_moves(kind: str, compact: bool) -> None:
    for family in families().values():
        bought = procurement(family, 8, Wish(kind=kind, reservation="r", compact=compact))
        assert bought.on_host_maintenance == "TERMINATE"


def test_only_a_machine_that_may_move_migrates() -> None:
    assert procurement(N2, 0, Wish(kind="on_demand")).on_host_maintenance == "MIGRATE"


def test_a_machine_type_belongs_to_the_family_before_its_last_hyphen() -> None:
    assert family_of("a3-megagpu-8g").name == "a3-megagpu"
