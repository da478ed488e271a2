"""Synthetic datasets, and detection of damaged datasets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.yard.data.dataset_samples import TEXTS, lines, quiet, request, tokens_of
from yard.data.dataset.__main__ import parse, work
from yard.data.dataset.errors import DatasetError
from yard.data.dataset.prepare import prepare
from yard.data.dataset.verify import verify


def test_a_seed_always_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        work(parse(["synth", str(tmp_path / name), "--tokens", "20K", "--seed", seed]))
    first, again, other = (tokens_of(tmp_path / name) for name in "abc")
    assert first == again != other
    assert len(first) == 20_000
    follows = sum(after == (before + 1) % 511 for before, after in pairwise(first))
    assert follows > 0.99 * len(first)
    assert verify(tmp_path / "a", full=True)["vocab"] == 512


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "in.jsonl").write_bytes(lines(TEXTS * 5))
    prepare(request(folder / "in.jsonl", folder / "out"), quiet)
    return folder


@pytest.fixture
def made(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "made")
    return tmp_path / "made" / "out"


Damage = Callable[[bytearray], object]
SIZES, POINTERS, DOCUMENTS = 34, 34 + 4 * 25, 34 + 12 * 25


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        (".bin", lambda raw: raw.pop(), "bytes, but its index requires"),
        (
            ".bin",
            lambda raw: raw.__setitem__(slice(0, 2), b"\x2c\x01"),
            "token 300, but its vocabulary has 257",
        ),
        (".idx", lambda raw: raw.pop(), "its header requires"),
        (".idx", lambda raw: raw.__setitem__(0, 0), "is not an index of this format"),
        (".idx", lambda raw: raw.__delitem__(slice(20, None)), "is not an index of this format"),
        (".idx", lambda raw: raw.__setitem__(9, 2), "has version 2"),
        (".idx", lambda raw: raw.__setitem__(17, 7), "type 7"),
        (".idx", lambda raw: raw.__setitem__(POINTERS + 16, 1), "document 2 does not begin"),
        (".idx", lambda raw: raw.__setitem__(SIZES, 0), "lists an empty document"),
        (".idx", lambda raw: raw.__setitem__(DOCUMENTS, 9), "does not range from 0 to 25"),
        (".json", lambda raw: raw.pop(0), "is not valid JSON"),
    ],
)
def test_damage_is_detected(suffix: str, damage: Damage, message: str, made: Path) -> None:
    path = Path(f"{made}{suffix}")
    raw = bytearray(path.read_bytes())
    damage(raw)
    path.write_bytes(raw)
    with pytest.raises(DatasetError, match=message):
        verify(made, full=False)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_missing_file_is_reported(suffix: str, made: Path) -> None:
    Path(f"{made}{suffix}").unlink()
    with pytest.raises(DatasetError, match="cannot be read"):
        verify(made, full=False)


def test_datasets_of_other_tools_have_no_vocabulary(made: Path) -> None:
    Path(f"{made}.json").unlink()
    assert verify(made, full=False)["vocab"] is None


def test_a_quick_check_reads_both_ends_of_a_file(tmp_path: Path) -> None:
    name = tmp_path / "large"
    work(parse(["synth", str(name), "--tokens", "3M"]))
    quick, full = verify(name, full=False), verify(name, full=True)
    assert quick["looked_at"] < full["looked_at"] == 3_000_000
    with (tmp_path / "large.bin").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\xff\xff")
    with pytest.raises(DatasetError, match="contains token 65535"):
        verify(name, full=False)
