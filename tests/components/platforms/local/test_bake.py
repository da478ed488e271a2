"""Builds of images for local machines, with a fake QEMU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from components.platforms.local import bake
from components.platforms.local.bake import bake_here, report_in
from components.platforms.local.image import GoldenImage, find_image, require_image
from components.platforms.local.paths import cache_folder, socket_folder
from components.platforms.local.process import started_under, sweep_run
from tests.components.platforms.recording import planned
from trainyard.errors import PlatformError

NAME = "trainyard-debian-13-0123456789abcdef"
PLAN = planned("local", {"platform__accelerator": "tcg"}).plan


@pytest.fixture
def run(tmp_path: Path, stack_run: Path, console: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run folder of a builder that completes its stages and shuts down."""
    monkeypatch.setattr(bake, "runs_folder", lambda: tmp_path / "run")
    monkeypatch.setenv("FAKE_DIES", "1")
    console.write_text("booting\r\ntrainyard-bake: stage 20-apt for head\r\n[   9.1] trainyard-bake: done\r\n")
    folder = tmp_path / "run" / NAME
    yield folder
    sweep_run(folder)


def nothing_is_left(run: Path) -> bool:
    incomplete = list((cache_folder() / "images").glob(f"{bake.BUILDING}*"))
    return not (started_under(run) or run.exists() or socket_folder(run).exists() or incomplete)


def test_a_complete_image_is_stored_and_built_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bake_here(PLAN, NAME) == NAME
    made = find_image(NAME)
    assert made
    assert made.kernel.read_bytes() == b"\x7fELF"
    assert require_image(NAME) == made
    assert nothing_is_left(run)
    monkeypatch.setattr(bake, "_build", lambda *_: pytest.fail("built again"))
    assert bake_here(PLAN, NAME) == NAME


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("trainyard-bake: failed: stage 44-containers ended\r\n", "44-containers ended"),
        ("", "the builder stopped early"),
    ],
)
def test_a_failed_bake_is_reported_and_leaves_nothing(run: Path, console: Path, said: str, reason: str) -> None:
    console.write_text(f"E: no package docker.io\r\n{said}")
    with pytest.raises(PlatformError, match=reason) as failure:
        bake_here(PLAN, NAME)
    assert "No image was stored" in str(failure.value)
    assert "E: no package docker.io" in str(failure.value)
    assert nothing_is_left(run)
    assert find_image(NAME) is None


def test_an_interrupted_bake_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        assert started_under(run)
        raise KeyboardInterrupt

    monkeypatch.delenv("FAKE_DIES")
    monkeypatch.setattr(bake, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bake_here(PLAN, NAME)
    assert nothing_is_left(run)
    assert find_image(NAME) is None


def test_files_of_a_killed_bake_are_removed(run: Path) -> None:
    (cache_folder() / "images" / f"{bake.BUILDING}dead").mkdir()
    (run / "builder").mkdir(parents=True)
    bake_here(PLAN, NAME)
    assert nothing_is_left(run)


def test_a_missing_image_is_reported(image: GoldenImage) -> None:
    with pytest.raises(PlatformError, match=f"the image {NAME} is not on this computer. Fix: run `yard bake`"):
        require_image(NAME)


def test_an_incomplete_line_is_not_a_report() -> None:
    assert report_in("trainyard-bake: stage 10-base\r\ntrainyard-bake: do") == "stage 10-base"
    assert report_in("") == ""
