"""Error messages for stack files."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError, field_validator

from components.spec.explain import dotted, explain, nearest
from components.spec.model import Model


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


class Sized(Model):
    """A section with limits."""

    count: Annotated[int, Field(ge=1, le=8, examples=[2])] = 1
    gib: Annotated[float, Field(ge=0.5, le=64, examples=[16])] = 1
    usd: Annotated[float | None, Field(gt=0, le=100, examples=[80])] = None


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ({"count": 9}, "count: must be a whole number from 1 to 8. Fix: use a number in this range, for example 2."),
        ({"gib": 65}, "gib: must be a number from 0.5 to 64. Fix: use a number in this range, for example 16."),
        ({"usd": 101}, "usd: must be a number greater than 0 and at most 100. Fix: use a number in this range, for "),
        ({"usd": 0}, "usd: must be a number greater than 0 and at most 100. Fix: "),
        ({"usd": None, "gib": []}, "gib: must be a number from 0.5 to 64. Fix: "),
    ],
)
def test_message_states_the_kind_and_limits_of_a_number(section: Any, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sized.model_validate(section)
    [problem] = explain(caught.value, Sized, "size", {})
    assert problem.line("f").startswith(f"f:size.{rule}")
