"""The cache of golden images: images/<hash>/ {gold.qcow2, vmlinux, manifest.json}, complete or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.platforms.local.image.archive import machine_archive
from components.platforms.local.image.privilege import privilege
from components.platforms.local.image.progress import BuildProgress
from components.platforms.local.image.recipe import recipe_hash
from components.platforms.local.image.steps import build, remove_tree
from components.platforms.local.paths import cache_folder

_KEPT = 2
"""Images kept after a build: the new one, and one for machines that were made before the recipe changed."""


@dataclass(frozen=True, kw_only=True)
class GoldenImage:
    """A complete image in the cache."""

    id: str
    folder: Path

    @property
    def disk(self) -> Path:
        """The disk that every machine's own disk builds on. Read-only."""
        return self.folder / "gold.qcow2"

    @property
    def kernel(self) -> Path:
        """The ELF kernel."""
        return self.folder / "vmlinux"


def image_id() -> str:
    """Return the identity of the image that this checkout asks for."""
    return recipe_hash()


def find_image(wanted: str) -> GoldenImage | None:
    """Return a cached image by its identity."""
    folder = _images() / wanted
    return GoldenImage(id=wanted, folder=folder) if (folder / "manifest.json").exists() else None


def ensure_image() -> GoldenImage:
    """Return this checkout's image, building it first when it is not cached. One builder at a time on a machine."""
    wanted = image_id()
    found = find_image(wanted)
    if found is not None:
        return found
    images = _images()
    images.mkdir(parents=True, exist_ok=True)
    with BuildProgress("golden image") as progress, _lock(images, progress):
        # Another process may have built it while this one waited for the lock.
        return find_image(wanted) or _build(images, wanted, progress)


def _build(images: Path, wanted: str, progress: BuildProgress) -> GoldenImage:
    archive, rights = machine_archive(), privilege()
    for abandoned in images.glob("building-*"):
        remove_tree(abandoned, rights)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=images))
    try:
        build(work, archive, rights, progress)
        work.rename(images / wanted)
    finally:
        if work.exists():
            remove_tree(work, rights)
    _prune(images)
    return GoldenImage(id=wanted, folder=images / wanted)


def _prune(images: Path) -> None:
    complete = sorted(images.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for manifest in complete[_KEPT:]:
        shutil.rmtree(manifest.parent)


@contextmanager
def _lock(images: Path, progress: BuildProgress) -> Iterator[None]:
    handle = os.open(images / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.phase("wait for another build")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _images() -> Path:
    return cache_folder() / "images"
