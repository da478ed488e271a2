"""Node states, and selection of the next batch."""

from __future__ import annotations

import pytest

from yard.roll.nodes import drain_command, is_free, is_in_service, next_batch, parse_jobs

GROUP = ("n0", "n1", "n2", "n3")
IDLE = {name: ("idle", "") for name in GROUP}


@pytest.mark.parametrize(
    ("state", "in_service", "free"),
    [
        ("idle", True, False),
        ("allocated", True, False),
        ("mixed-", True, False),
        ("idle*", False, True),
        ("draining", False, False),
        ("draining*", False, False),
        ("drained", False, True),
        ("drained*", False, True),
        ("down", False, True),
        ("down*", False, True),
    ],
)
def test_states_of_sinfo(state: str, in_service: bool, free: bool) -> None:
    assert is_in_service(state) is in_service
    assert is_free(state) is free


def test_a_batch_has_at_most_the_allowed_number_of_nodes() -> None:
    assert next_batch(GROUP, GROUP, IDLE, 1) == ("n0",)
    assert next_batch(GROUP, GROUP, IDLE, 3) == ("n0", "n1", "n2")
    assert next_batch(("n3",), GROUP, IDLE, 3) == ("n3",)


def test_nodes_out_of_service_come_first() -> None:
    assert next_batch(GROUP, GROUP, IDLE | {"n2": ("down", "broken")}, 2) == ("n2", "n0")


def test_replaced_nodes_out_of_service_use_up_the_limit() -> None:
    states = IDLE | {"n0": ("drained", "bad cable")}
    assert next_batch(("n1", "n2", "n3"), GROUP, states, 1) == ()
    assert next_batch(("n1", "n2", "n3"), GROUP, states, 2) == ("n1",)


def test_a_node_that_slurm_lacks_is_out_of_service() -> None:
    assert next_batch(("n1",), GROUP, {"n1": ("idle", "")}, 3) == ()


def test_names_are_one_argument() -> None:
    assert drain_command(["n0", "n1"]).split("nodename=")[1].split()[0] == "n0,n1"


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("0:07", 7), ("59:59", 3599), ("1:00:01", 3601), ("2-03:00:00", 2 * 86400 + 3 * 3600)]
)
def test_run_times_of_squeue(elapsed: str, seconds: int) -> None:
    (job,) = parse_jobs(f"7|{elapsed}|trainer|a|b\n")
    assert (job.id, job.seconds, job.line) == ("7", seconds, "7 (a|b) of trainer")
