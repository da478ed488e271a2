"""The cache of images. A complete image consists of images/<id>/{gold.qcow2, vmlinux, manifest.json}.

The id of a golden image consists of hexadecimal digits. A baked image has its name as the id.
`python -m components.platforms.local.image build` builds the golden image if it is not cached.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.platforms.local.image_build import (
    BuildProgress,
    build,
    image_id,
    machine_archive,
    privilege,
    remove_tree,
)
from components.platforms.local.paths import cache_folder
from trainyard.errors import PlatformError

_KEPT = 2
"""Number of golden images in the cache: the new image and the previous image. Images of existing machines are also
kept."""
_USERS = "disks"
"""Folder of an image. Each file in it contains the path of a disk that is based on the image."""
_BAKED = "trainyard-"
"""Prefix of the names of baked images. These images are never removed, because a stack file can contain their names."""


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


def find_image(wanted: str) -> GoldenImage | None:
    """Return a cached image by id, or None."""
    folder = _images() / wanted
    return GoldenImage(folder) if (folder / "manifest.json").exists() else None


def hold_image(image: GoldenImage, disk: Path) -> None:
    """Record that a machine's disk is based on this image, and on no other image.

    The image stays in the cache until the disk is deleted.
    """
    name = hashlib.sha256(str(disk).encode()).hexdigest()[:16]
    for old in _images().glob(f"*/{_USERS}/{name}"):
        old.unlink(missing_ok=True)
    users = image.folder / _USERS
    users.mkdir(exist_ok=True)
    (users / name).write_text(str(disk))


def ensure_image() -> GoldenImage:
    """Return the image of this checkout, or build it if it is not cached. A lock prevents concurrent builds."""
    wanted = image_id()
    found = find_image(wanted)
    if found is not None:
        return found
    with BuildProgress("golden image") as progress, image_cache(progress) as images:
        # Another process may have built the image while this process waited for the lock.
        return find_image(wanted) or _build(images, wanted, progress)


def require_image(wanted: str) -> GoldenImage:
    """Return a baked image by name. For an id of a golden image, return the golden image of this checkout.

    Raises PlatformError if the cache does not contain the baked image.
    """
    if not wanted.startswith(_BAKED):
        return ensure_image()
    found = find_image(wanted)
    if found is None:
        raise PlatformError(
            f"the image {wanted} is not on this computer. Fix: run `yard bake` and set cluster.platform.baked_image to "
            "the name that it prints, or remove baked_image"
        )
    return found


@contextmanager
def image_cache(progress: BuildProgress) -> Iterator[Path]:
    """Create and lock the folder of all images, so that no other process builds an image."""
    images = _images()
    images.mkdir(parents=True, exist_ok=True)
    with _lock(images, progress):
        yield images


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
    return GoldenImage(images / wanted)


def _prune(images: Path) -> None:
    golden = (found for found in images.glob("*/manifest.json") if not found.parent.name.startswith(_BAKED))
    complete = sorted(golden, key=lambda path: path.stat().st_mtime, reverse=True)
    for manifest in complete[_KEPT:]:
        if not _is_held(manifest.parent):
            shutil.rmtree(manifest.parent)


def unused_images() -> list[Path]:
    """Return the folders of the golden images on which no disk is based."""
    manifests = sorted(_images().glob("*/manifest.json"))
    folders = [manifest.parent for manifest in manifests if not manifest.parent.name.startswith(_BAKED)]
    return [folder for folder in folders if not _is_held(folder)]


def _is_held(folder: Path) -> bool:
    return any(Path(user.read_text()).exists() for user in folder.glob(f"{_USERS}/*"))


@contextmanager
def _lock(images: Path, progress: BuildProgress) -> Iterator[None]:
    with (images / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.phase("wait for a concurrent build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _images() -> Path:
    return cache_folder() / "images"


def _interrupt(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Build the image and print its folder. Returns 1 if the build fails, and 2 for invalid arguments."""
    if arguments != ["build"]:
        sys.stderr.write("usage: python -m components.platforms.local.image build\n")
        return 2
    # By default, SIGTERM would end the process without removing the incomplete image.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.stdout.write(f"{ensure_image().folder}\n")
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
