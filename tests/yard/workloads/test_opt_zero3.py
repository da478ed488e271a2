"""The data loading in opt_zero3.py. The tests do not need torch or DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from yard.workloads.opt_zero3 import read_texts, sample_numbers


def numbers(batch_number: int, ranks: int, batch: int, count: int) -> list[int]:
    """Return the sample indices of all ranks for one batch."""
    return [number for rank in range(ranks) for number in sample_numbers(batch_number, rank, ranks, batch, count)]


def test_ranks_read_different_samples() -> None:
    assert numbers(0, ranks=4, batch=2, count=100) == list(range(8))
    assert numbers(1, ranks=4, batch=2, count=100) == list(range(8, 16))


def test_fewer_samples_than_a_batch_repeat() -> None:
    assert numbers(0, ranks=2, batch=4, count=3) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_every_sample_is_read_before_one_repeats() -> None:
    read = [number for batch in range(5) for number in numbers(batch, ranks=2, batch=3, count=30)]
    assert sorted(read) == list(range(30))


def test_an_empty_data_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("\n\n")
    with pytest.raises(ValueError, match="contains no lines"):
        read_texts(tmp_path / "data.jsonl")


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert read_texts(tmp_path / "data.jsonl") == ["a", "b"]
