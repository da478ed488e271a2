"""Rounds of pairs, and the search for slow nodes in simulated groups."""

from __future__ import annotations

import pytest
from bandwidth.results import Measured, Pair, judge, rounds

SIZES = range(2, 12)


def names(size: int) -> list[str]:
    return [f"n-{index}" for index in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_pairs_of_a_round_share_no_node(size: int) -> None:
    for pairs in rounds(names(size), names(size)):
        used = [name for pair in pairs for name in pair]
        assert len(used) == len(set(used))


@pytest.mark.parametrize("size", SIZES)
def test_each_node_has_two_partners(size: int) -> None:
    partners: dict[str, set[str]] = {name: set() for name in names(size)}
    for pairs in rounds(names(size), names(size)):
        for first, second in pairs:
            partners[first].add(second)
            partners[second].add(first)
    assert min(len(found) for found in partners.values()) >= min(2, size - 1)


def test_pairs_without_a_fresh_node_are_omitted() -> None:
    found = [pair for pairs in rounds(names(6), ["n-3"]) for pair in pairs]
    assert found
    assert all("n-3" in pair for pair in found)


@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_nodes_have_no_pairs(size: int) -> None:
    assert rounds(names(size), names(size)) == []


@pytest.mark.parametrize("size", range(3, 12))
def test_each_single_slow_node_is_found(size: int) -> None:
    for slow in names(size):
        results: dict[Pair, Measured] = {
            pair: Measured(1.0 if slow in pair else 10.0)
            for pairs in rounds(names(size), names(size))
            for pair in pairs
        }
        verdict = judge(results, 5.0)
        assert set(verdict.suspects) == {slow}
        assert verdict.undecided == ()


@pytest.mark.parametrize(("wrong", "suspects"), [(True, {"c"}), (False, set())])
def test_wrong_data_is_a_fault_and_a_failed_launch_is_none(wrong: bool, suspects: set[str]) -> None:
    failed = Measured(None, "failed", wrong)
    verdict = judge({("a", "b"): Measured(10.0), ("a", "c"): failed, ("b", "c"): failed}, 5.0)
    assert (set(verdict.suspects), verdict.undecided) == (suspects, ())


def test_one_slow_pair_of_two_nodes_is_undecided() -> None:
    verdict = judge({("a", "b"): Measured(1.0)}, 5.0)
    assert verdict.suspects == {}
    assert verdict.undecided == (("a", "b"),)


def test_without_a_floor_no_bandwidth_is_slow() -> None:
    verdict = judge({("a", "b"): Measured(0.001)}, None)
    assert (verdict.suspects, verdict.undecided) == ({}, ())
