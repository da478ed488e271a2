"""The warning after a failed creation."""

from __future__ import annotations

import pytest

from components.cluster.leftovers import Leftover, leftovers_message


def leftover(name: str, usd: float | None, *, exists: bool = True, protected: bool = False) -> Leftover:
    return Leftover(name=name, kind="machine m", usd_per_hour=usd, protected=protected, exists=exists)


def test_lists_existing_resources_and_prices() -> None:
    text = leftovers_message(
        "c-gpu-1", "s", [leftover("c-head", 0.5), leftover("c-gpu-0", 10), leftover("c-gpu-1", 10)]
    )
    assert "c-gpu-1 could not be created" in text
    assert "  c-head: machine m, 0.50 dollars an hour\n  c-gpu-0: machine m, 10.00 dollars an hour\n" in text
    assert "  in total 10.50 dollars an hour at list prices\n" in text
    assert "  c-gpu-1:" not in text


def test_the_total_omits_unknown_prices_and_unfinished_ones() -> None:
    unknown, unfinished = leftover("c-shared", None), leftover("c-gpu-0", 10, exists=False)
    text = leftovers_message("x", "s", [leftover("c-head", 0.5), unknown, unfinished])
    assert "c-shared: machine m, price unknown" in text
    assert "in total 0.50 dollars an hour at list prices, plus the unknown price of c-shared" in text
    assert text.index("c-head") < text.index("Unfinished resources") < text.index("c-gpu-0")


@pytest.mark.parametrize(
    ("protected", "command"),
    [(False, "run `pulumi destroy -s s`."), (True, "run `pulumi destroy -s s --exclude-protected`.")],
)
def test_removal_command_depends_on_protection(protected: bool, command: str) -> None:
    text = leftovers_message("x", "s", [leftover("c-shared", None, protected=protected)])
    assert command in text
    assert ("platform.protect_storage to false" in text) == protected


def test_nothing_is_billed_if_the_first_creation_fails() -> None:
    assert leftovers_message("x", "s", [leftover("x", 1)]).endswith("nothing is billed.")
