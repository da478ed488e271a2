"""`make clean`: clean the cache that all of a user's checkouts share, and print what was deleted and kept."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from components.platforms.local.image import unused_images
from components.platforms.local.paths import cache_folder

_TOOLS = ("cloud-init", "go", "kvm-probe.json", "mypy", "pulumi")
"""The cache's entries that `make setup` and the checks create again."""


def clean(cache: Path) -> Iterator[str]:
    """Delete the tools and the unused images in the cache, and yield a line for each entry."""
    unused = list(unused_images())
    total = 0
    for path in [*(cache / name for name in _TOOLS), *unused]:
        if not path.exists():
            continue
        size = _size(path)
        total += size
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield f"deleted {path} ({_shown(size)})"
    for path in sorted((cache / "images").glob("*/")):
        yield f"kept {path} ({_shown(_size(path))}): a machine uses it, or `yard bake` built it"
    yield f"deleted {_shown(total)} in {cache}. Before the next use of any checkout, run `make setup` there"


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    # Images are sparse files, so their size on disk counts.
    return sum(file.lstat().st_blocks * 512 for file in files)


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004  (0.1 GB)


def main() -> int:
    for line in clean(cache_folder()):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
