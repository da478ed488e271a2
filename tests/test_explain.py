"""Messages: near words are suggested, places are printable, and an unforeseen error still says something useful."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError, field_validator

from components.explain import dotted, explain, nearest
from components.spec import Model


class Odd(Model):
    """A section whose errors nobody foresaw."""

    ratio: float = 0.5
    word: str = "x"

    @field_validator("word")
    @classmethod
    def _refuse(cls, value: str) -> str:
        raise ValueError("words are over")


def problems(value: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Odd.model_validate(value)
    return [problem.line("f") for problem in explain(caught.value, Odd, "odd", {})]


def test_an_unforeseen_error_keeps_its_own_words_and_shows_no_input() -> None:
    lines = problems({"ratio": "hunter2", "word": "hunter2"})
    assert lines == [
        "f:odd.ratio: Input should be a valid number, unable to parse string as a number. "
        "Fix: write something like 0.5.",
        "f:odd.word: words are over. Fix: write something like x.",
    ]


@pytest.mark.parametrize(("word", "meant"), [("cuont", "count"), ("COUNT", "count"), ("zzz", None)])
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, ["machine", "count"]) == meant


def test_a_place_is_one_printable_line() -> None:
    assert dotted("cluster", ("nodes", "a\nb\x1b", "[key]")) == "cluster.nodes.a?b?"
    assert len(dotted("cluster", ("x" * 500,))) < 60
