"""The message after a failed creation: what exists, what it costs, and the commands that go on or remove it."""

from __future__ import annotations

import pytest

from components.leftovers import Leftover, leftovers_message


def leftover(name: str, usd: float | None, *, exists: bool = True, protected: bool = False) -> Leftover:
    return Leftover(name=name, kind="machine m", usd_per_hour=usd, protected=protected, exists=exists)


def test_existing_resources_are_listed_with_their_price() -> None:
    text = leftovers_message(
        "c-gpu-1", "s", [leftover("c-head", 0.5), leftover("c-gpu-0", 10), leftover("c-gpu-1", 10)]
    )
    assert "c-gpu-1 could not be created" in text
    assert "  c-head: machine m, 0.50 dollars an hour\n  c-gpu-0: machine m, 10.00 dollars an hour\n" in text
    assert "  in all 10.50 dollars an hour by list prices\n" in text
    assert "  c-gpu-1:" not in text


def test_an_unknown_price_is_named_and_not_counted_as_zero() -> None:
    text = leftovers_message("x", "s", [leftover("c-head", 0.5), leftover("c-shared", None)])
    assert "c-shared: machine m, price unknown" in text
    assert "in all 0.50 dollars an hour by list prices, and the unknown price of c-shared" in text


def test_unfinished_creations_are_listed_apart_and_not_counted() -> None:
    text = leftovers_message("x", "s", [leftover("c-head", 0.5), leftover("c-gpu-0", 10, exists=False)])
    assert text.index("not finished yet") > text.index("c-head")
    assert text.index("c-gpu-0") > text.index("not finished yet")
    assert "in all 0.50 dollars" in text


@pytest.mark.parametrize(
    ("protected", "command"),
    [(False, "run `pulumi destroy -s s`."), (True, "run `pulumi destroy -s s --exclude-protected`.")],
)
def test_the_removal_command_fits_the_protection(protected: bool, command: str) -> None:
    text = leftovers_message("x", "s", [leftover("c-shared", None, protected=protected)])
    assert command in text
    assert ("platform.protect_storage to false" in text) == protected


def test_a_failure_before_anything_exists_is_reported_as_such() -> None:
    assert leftovers_message("x", "s", [leftover("x", 1)]).endswith("nothing is billed.")
