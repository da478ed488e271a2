"""The data loading in opt_zero3.py. The tests do not need torch or DeepSpeed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yard.workloads.opt_zero3 import IGNORED, Batches, read_texts, sample_numbers


def numbers(batch_number: int, ranks: int, batch: int, count: int) -> list[int]:
    """Return the sample indices of all ranks for one batch."""
    return [number for rank in range(ranks) for number in sample_numbers(batch_number, rank, ranks, batch, count)]


def test_ranks_read_different_samples() -> None:
    assert numbers(0, ranks=4, batch=2, count=100) == list(range(8))
    assert numbers(1, ranks=4, batch=2, count=100) == list(range(8, 16))


def test_every_sample_is_read_before_one_repeats() -> None:
    read = [number for batch in range(5) for number in numbers(batch, ranks=2, batch=3, count=30)]
    assert sorted(read) == list(range(30))
    assert numbers(0, ranks=2, batch=4, count=3) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert read_texts(file) == ["a", "b"]
    file.write_text("\n\n")
    with pytest.raises(ValueError, match="contains no lines"):
        read_texts(file)


class Tensor:
    """One row of numbers with the two operations that Batches uses."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __eq__(self, other: object) -> Any:
        return [number == other for number in self.numbers]

    __hash__ = None  # type: ignore[assignment]

    def masked_fill(self, mask: list[bool], value: int) -> list[int]:
        return [value if hidden else number for number, hidden in zip(self.numbers, mask, strict=True)]


class Tokenizer:
    """Returns two tokens and two padding tokens. The id of the padding token, 2, is also the id of a normal token."""

    def __call__(self, texts: list[str], **options: object) -> dict[str, Tensor]:
        assert (options["padding"], options["max_length"]) == ("max_length", 4)
        self.texts = texts
        return {"input_ids": Tensor([7, 2, 2, 2]), "attention_mask": Tensor([1, 1, 0, 0])}


def test_the_loss_ignores_padding_only(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    tokenizer = Tokenizer()
    auto = SimpleNamespace(from_pretrained=lambda _: tokenizer)
    options = Namespace(data=str(tmp_path / "data.jsonl"), model="m", batch=1, seq=4)
    data = Batches(None, SimpleNamespace(AutoTokenizer=auto), options, rank=0, ranks=1)
    batch = data.batch(2)
    assert tokenizer.texts == ["c"]
    assert batch["labels"] == [7, 2, IGNORED, IGNORED]
    assert batch["attention_mask"].numbers == [1, 1, 0, 0]
