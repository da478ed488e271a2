"""Error messages for stack files."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError, field_validator

from components.stackfile.explain import dotted, explain, nearest
from components.stackfile.model import Model


class Odd(Model):
    """A section that produces types of errors that explain.py does not handle."""

    ratio: float = 0.5
    word: str = "x"

    @field_validator("word")
    @classmethod
    def _refuse(cls, value: str) -> str:
        raise ValueError("the word is wrong")


def problems(value: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Odd.model_validate(value)
    return [problem.line("f") for problem in explain(caught.value, Odd, "odd", {})]


def test_other_errors_keep_their_text_without_input() -> None:
    lines = problems({"ratio": "hunter2", "word": "hunter2"})
    assert lines == [
        "f:odd.ratio: Input should be a valid number, unable to parse string as a number. "
        "Fix: write something like 0.5.",
        "f:odd.word: the word is wrong. Fix: write something like x.",
    ]


@pytest.mark.parametrize(("word", "similar"), [("cuont", "count"), ("COUNT", "count"), ("zzz", None)])
def test_nearest_word(word: str, similar: str | None) -> None:
    assert nearest(word, ["machine", "count"]) == similar


def test_dotted_path_is_printable() -> None:
    assert dotted("cluster", ("nodes", "a\nb\x1b", "[key]")) == "cluster.nodes.a?b?"
    assert len(dotted("cluster", ("x" * 500,))) < 60
