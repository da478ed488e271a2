"""`make clean` deletes the cache except the images that machines use."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.platforms.local.image import find_image, hold_image
from tools.clean import clean


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with tools, and with an unused image, an image that a machine's disk uses, and a baked image."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRAINYARD_CACHE", str(cache))
    for name in ("0a", "0b", "trainyard-debian-13-0123456789abcdef"):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "manifest.json").write_text("{}")
    (cache / "images" / "0a" / "gold.qcow2").write_bytes(b"x" * 300_000)
    (cache / "mypy").mkdir()
    (cache / "mypy" / "file").write_bytes(b"x" * 200_000)
    (cache / "notes.txt").write_text("not from this project")
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    used = find_image("0b")
    assert used is not None
    hold_image(used, disk)
    return cache


def test_clean_deletes_the_cache_and_says_what(cache: Path) -> None:
    lines = list(clean(cache))
    assert sorted(path.name for path in cache.iterdir()) == ["images", "notes.txt"]
    assert sorted(path.name for path in (cache / "images").iterdir()) == ["0b", "trainyard-debian-13-0123456789abcdef"]
    assert [line.partition(" (")[0] for line in lines[:4]] == [
        f"deleted {cache / 'mypy'}",
        f"deleted {cache / 'images' / '0a'}",
        f"kept {cache / 'images' / '0b'}",
        f"kept {cache / 'images' / 'trainyard-debian-13-0123456789abcdef'}",
    ]
    assert lines[-1].startswith("deleted 0.5 MB in ")


def test_clean_of_an_empty_cache_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "absent"))
    assert [line.partition(" in ")[0] for line in clean(tmp_path / "absent")] == ["deleted 0.0 MB"]
