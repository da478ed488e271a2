"""Checks that a dataset is complete and can be mapped into memory."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import PREPARE_AGAIN, part, read_index
from .tokenizers import ARRAY_KINDS

_WINDOW_BYTES = 1 << 16
_WINDOWS = 64
"""Number of windows that a quick check reads. The windows are evenly spaced and include both ends of the file."""


def verify(name: Path, *, full: bool) -> dict[str, Any]:
    """Check the index, the token ids and the memory mapping. Raises DatasetError if the dataset is damaged.

    With `full`, every token is checked. Otherwise, 64 windows are checked. Returns counts and a digest of the checked
    bytes.
    """
    index = read_index(part(name, ".idx"))
    vocab = _vocab(name)
    path = part(name, ".bin")
    size, expected = _size(path), index.width * sum(index.sizes)
    if size != expected:
        raise DatasetError(f"{path} has {size} bytes, but its index requires {expected}", PREPARE_AGAIN)
    digest, largest, seen = 0, 0, 0
    with path.open("rb", buffering=0) as file, _mapped(path, file.fileno(), size) as memory:
        for at in _windows(size, full=full):
            window = memory[at : at + _WINDOW_BYTES]
            file.seek(at)
            if file.read(_WINDOW_BYTES) != window:
                fix = "use a file system with coherent memory mapping (NFS 4.2, not a fuse mount)"
                raise DatasetError(f"{path} has different contents when mapped into memory, at byte {at}", fix)
            digest, seen = zlib.crc32(window, digest), seen + len(window) // index.width
            largest = max(largest, *array(ARRAY_KINDS[index.width], window))
    if vocab is not None and largest >= vocab:
        raise DatasetError(f"{path} contains token {largest}, but its vocabulary has {vocab} tokens", PREPARE_AGAIN)
    return {
        "documents": len(index.sizes),
        "tokens": sum(index.sizes),
        "token_bytes": index.width,
        "vocab": vocab,
        "looked_at": seen,
        "digest": f"{digest:08x}",
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror})", PREPARE_AGAIN) from None


def _vocab(name: Path) -> int | None:
    """Return the size of the vocabulary, or None if another tool created the dataset without a .json file."""
    try:
        facts = json.loads(part(name, ".json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise DatasetError(f"{name}.json is not valid JSON", PREPARE_AGAIN) from None
    return int(facts["vocab"])


def _mapped(path: Path, number: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(number, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        fix = "use a file system that supports mmap: the head's NFS share or a local disk"
        raise DatasetError(f"{path} cannot be mapped into memory ({os.strerror(error.errno or 0)})", fix) from error


def _windows(size: int, *, full: bool) -> Sequence[int]:
    """Return the byte offsets of the windows."""
    every = range(0, size, _WINDOW_BYTES)
    if full or len(every) <= _WINDOWS:
        return every
    return [every[number * (len(every) - 1) // (_WINDOWS - 1)] for number in range(_WINDOWS)]
