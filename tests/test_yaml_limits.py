"""Small texts that would take a machine down are refused at once, with the line."""

from __future__ import annotations

import time

import pytest

from components.strict_yaml import YamlError, load_strict
from components.yaml_limits import MOST_LEVELS

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
MERGES = "a0: &a0 {k0: x}\n" + "".join(f"a{n}: &a{n} {{b: *a{n - 1}, c: *a{n - 1}}}\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "{a: " * 20_000, "nested deeper"),
        ("a: " + "[" * 100_000, "nested deeper"),
        ("- " * 20_000 + "x", "nested deeper"),
        (LAUGHS, "unfolds to more than"),
        (MERGES, "unfolds to more than"),
        ("x" * 1_000_001, "longer than"),
    ],
    ids=["mappings", "lists", "blocks", "laughs", "mappings of mappings", "size"],
)
def test_what_would_take_for_ever_is_refused_at_once(text: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(YamlError, match=words) as caught:
        load_strict(text)
    assert caught.value.line >= 1
    assert time.process_time() - began < 0.5


def test_what_a_stack_file_needs_is_not() -> None:
    text = "base: &base {machine: m, count: 2}\n" + "".join(f"g{n}: {{<<: *base, count: {n}}}\n" for n in range(500))
    assert load_strict(text).value["g7"] == {"machine": "m", "count": 7}
    deep = "[" * (MOST_LEVELS - 1) + "]" * (MOST_LEVELS - 1)
    assert load_strict(deep).repeated == ()


def test_an_anchor_that_holds_itself_is_still_told() -> None:
    with pytest.raises(YamlError, match="holds itself"):
        load_strict("a: &a [*a]\n")
