"""Limits for YAML documents, and the time until a document that exceeds a limit is rejected."""

from __future__ import annotations

import time

import pytest

from trainyard.strict_yaml import MAX_CHARACTERS, MAX_LEVELS, YamlError, load_strict

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "{a: " * 20_000, "nested deeper"),
        ("a: " + "[" * 100_000, "nested deeper"),
        ("- " * 20_000 + "x", "nested deeper"),
        (LAUGHS, "alias"),
        ("a: &a {k: x}\nb: {<<: *a}\n", "alias"),
        ("a: &a [*a]\n", "alias"),
        ("x" * (MAX_CHARACTERS + 1), "longer than"),
    ],
    ids=["mappings", "lists", "blocks", "laughs", "merge key", "recursive", "size"],
)
def test_text_beyond_a_limit_is_refused_within_half_a_second(text: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(YamlError, match=reason) as caught:
        load_strict(text)
    assert caught.value.line >= 1
    assert time.process_time() - began < 0.5


def test_text_at_the_limits_is_accepted() -> None:
    deep = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert load_strict(deep).repeated == ()
    assert load_strict("x" * MAX_CHARACTERS).value
