"""The cache of images. A complete image consists of images/<id>/{gold.qcow2, vmlinux, manifest.json}.

A golden image's id consists of hexadecimal digits, while a baked image's id is its name.
`python -m components.platforms.local.image build [SUITE]` builds the golden image if it is not cached.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.platforms.local.image_build import (
    DEFAULT_SUITE,
    GOLDEN,
    RELEASES,
    BuildProgress,
    Recipe,
    Release,
    build,
    image_id,
    machine_archive,
    privilege,
    remove_tree,
)
from components.platforms.local.paths import cache_folder
from trainyard.errors import PlatformError

_KEPT = 2
"""Number of golden images that are kept in addition to those of existing machines: the new and the previous one."""
_USERS = "disks"
"""Subfolder of an image's folder. Each file in it contains the path of a disk that is based on the image."""
_BAKED = "trainyard-"
"""Prefix of baked images' names. These images are never removed, because a stack file can refer to them."""


@dataclass(frozen=True)
class GoldenImage:
    """A complete image in the cache."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The read-only base of all root disks."""
        return self.folder / "gold.qcow2"

    @property
    def kernel(self) -> Path:
        """The ELF kernel."""
        return self.folder / "vmlinux"

    @property
    def release(self) -> Release:
        """The release in the manifest. Older baked images, all of them Debian 13, do not record it."""
        manifest = self.folder / "manifest.json"
        suite = json.loads(manifest.read_text()).get("suite") if manifest.exists() else None
        return RELEASES[suite or DEFAULT_SUITE]


def find_image(wanted: str) -> GoldenImage | None:
    """Return the image with the id `wanted`, or None if the cache does not contain it."""
    folder = _images() / wanted
    return GoldenImage(folder) if (folder / "manifest.json").exists() else None


def hold_image(image: GoldenImage, disk: Path) -> None:
    """Record that `disk` is based on `image` and no other image. `image` is then kept until the disk is deleted."""
    name = hashlib.sha256(str(disk).encode()).hexdigest()[:16]
    for old in _images().glob(f"*/{_USERS}/{name}"):
        old.unlink(missing_ok=True)
    users = image.folder / _USERS
    users.mkdir(exist_ok=True)
    (users / name).write_text(str(disk))


def ensure_image(recipe: Recipe = GOLDEN) -> GoldenImage:
    """Return this checkout's image of a recipe. Build it first if it is not cached."""
    wanted = image_id(recipe)
    found = find_image(wanted)
    if found is not None:
        return found
    with BuildProgress(f"{recipe.name} image") as progress, image_cache(progress) as images:
        # Another process may have built the image while this process waited for the lock.
        return find_image(wanted) or _build(images, wanted, recipe, progress)


def require_image(wanted: str) -> GoldenImage:
    """Return the baked image `wanted`. If `wanted` is a golden image's id, return this checkout's golden image.

    Raises PlatformError if the cache does not contain the baked image.
    """
    if not wanted.startswith(_BAKED):
        recipes = {image_id(recipe): recipe for recipe in (Recipe(suite=suite) for suite in RELEASES)}
        return ensure_image(recipes.get(wanted, GOLDEN))
    found = find_image(wanted)
    if found is None:
        raise PlatformError(
            f"the image {wanted} is not on this computer. Fix: run `yard bake` and set cluster.platform.baked_image to "
            "the name that it prints, or remove baked_image"
        )
    return found


@contextmanager
def image_cache(progress: BuildProgress) -> Iterator[Path]:
    """Create the images' folder and lock it, so that no other process builds an image."""
    images = _images()
    images.mkdir(parents=True, exist_ok=True)
    with (images / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.phase("wait for a concurrent build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield images


def _build(images: Path, wanted: str, recipe: Recipe, progress: BuildProgress) -> GoldenImage:
    archive, rights = machine_archive(recipe), privilege()
    for abandoned in images.glob("building-*"):
        remove_tree(abandoned, rights)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=images))
    try:
        build(work, archive, rights, progress, recipe)
        work.rename(images / wanted)
    finally:
        if work.exists():
            remove_tree(work, rights)
    _prune(recipe)
    return GoldenImage(images / wanted)


def _built(recipe: Recipe | None = None) -> list[Path]:
    """Return the folders of the images that were built from a recipe for its suite, or of all images, newest first."""
    manifests = [found for found in _images().glob("*/manifest.json") if not found.parent.name.startswith(_BAKED)]
    wanted = [found for found in manifests if recipe is None or _origin(found) == (recipe.name, recipe.suite)]
    return [found.parent for found in sorted(wanted, key=lambda path: path.stat().st_mtime, reverse=True)]


def _origin(manifest: Path) -> tuple[str, str]:
    """Return the names of the recipe and the suite. An older version built only golden images, and recorded no name."""
    recorded = json.loads(manifest.read_text())
    return recorded.get("name", GOLDEN.name), recorded.get("suite", GOLDEN.suite)


def _prune(recipe: Recipe) -> None:
    for folder in _built(recipe)[_KEPT:]:
        if not _is_held(folder):
            shutil.rmtree(folder)


def unused_images() -> list[Path]:
    """Return the folders of the images that no machine's disk uses, except baked images."""
    return [folder for folder in _built() if not _is_held(folder)]


def _is_held(folder: Path) -> bool:
    return any(Path(user.read_text()).exists() for user in folder.glob(f"{_USERS}/*"))


def _images() -> Path:
    return cache_folder() / "images"


def main(arguments: list[str]) -> int:
    """Build the image and print its folder. Returns 1 if the build fails, and 2 for invalid arguments."""
    verb, *suites = arguments or [""]
    if verb != "build" or len(suites) > 1 or not set(suites) <= set(RELEASES):
        sys.stderr.write(f"usage: python -m components.platforms.local.image build [{'|'.join(RELEASES)}]\n")
        return 2
    # By default, SIGTERM would end the process without removing the incomplete image.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        sys.stdout.write(f"{ensure_image(*(Recipe(suite=suite) for suite in suites)).folder}\n")
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
