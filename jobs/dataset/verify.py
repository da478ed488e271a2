"""Is a dataset whole, and can it be mapped into memory where it lies?"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import Index, part, read_index
from .tokenizers import array_kind

_AGAIN = "prepare it again"
_WINDOW = 1 << 16
"""Bytes of a window that is looked at."""
_WINDOWS = 64
"""Windows in a quick look, spread evenly; the first and the last bytes are always among them."""


def verify(name: Path, *, full: bool) -> dict[str, Any]:
    """Check index against tokens, and memory-mapped bytes against read ones. Raises DatasetError at what is wrong.

    `full` looks at every token, otherwise at 64 windows. Returns counts and a digest of what was seen, which is the
    same wherever the same bytes are.
    """
    index = read_index(part(name, ".idx"))
    _check_index(name, index)
    vocab = _vocab(name)
    path = part(name, ".bin")
    size = path.stat().st_size
    digest, largest, seen = 0, 0, 0
    with path.open("rb", buffering=0) as file, _mapped(path, file.fileno(), size) as memory:
        for at in _windows(size, full=full):
            window = memory[at : at + _WINDOW]
            file.seek(at)
            if file.read(_WINDOW) != window:
                fix = "use a file system with coherent memory mapping (NFS 4.2, not a fuse mount)"
                raise DatasetError(f"{path} reads differently when it is mapped, at byte {at}", fix)
            digest, seen = zlib.crc32(window, digest), seen + len(window) // index.width
            largest = max(largest, *array(array_kind(index.width), window))
    if vocab is not None and largest >= vocab:
        raise DatasetError(f"{path} holds token {largest}; its vocabulary has {vocab}", _AGAIN)
    return {
        "documents": len(index.sizes),
        "tokens": index.tokens,
        "token_bytes": index.width,
        "vocab": vocab,
        "looked_at": seen,
        "digest": f"{digest:08x}",
    }


def _check_index(name: Path, index: Index) -> None:
    path = part(name, ".idx")
    if not index.sizes:
        raise DatasetError(f"{path} lists no document", _AGAIN)
    if min(index.sizes) < 1:
        raise DatasetError(f"{path} lists an empty document", _AGAIN)
    expected = array("q", accumulate((size * index.width for size in index.sizes), initial=0))
    end = expected.pop()
    if expected != index.pointers:
        pairs = zip(expected, index.pointers, strict=True)
        wrong = next(place for place, (ours, theirs) in enumerate(pairs) if ours != theirs)
        raise DatasetError(f"{path}: document {wrong} does not begin where the one before ends", _AGAIN)
    listed = list(index.documents)
    if listed[:1] != [0] or listed[-1] != len(index.sizes) or listed != sorted(listed):
        raise DatasetError(f"{path}: its list of documents does not run from 0 to {len(index.sizes)}", _AGAIN)
    try:
        size = part(name, ".bin").stat().st_size
    except OSError as error:
        raise DatasetError(f"{name}.bin cannot be read ({error.strerror})", _AGAIN) from None
    if size != end:
        raise DatasetError(f"{name}.bin has {size} bytes; its index promises {end}", _AGAIN)


def _vocab(name: Path) -> int | None:
    """Return the vocabulary's size; None for a dataset of somebody else's, which has no .json."""
    try:
        facts = json.loads(part(name, ".json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise DatasetError(f"{name}.json cannot be understood", _AGAIN) from None
    return int(facts["vocab"])


def _mapped(path: Path, number: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(number, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        fix = "keep data on a file system with mmap: the head's NFS share or a local disk"
        raise DatasetError(f"{path} cannot be mapped into memory ({os.strerror(error.errno or 0)})", fix) from error


def _windows(size: int, *, full: bool) -> Iterator[int]:
    every = range(0, size, _WINDOW)
    if full or len(every) <= _WINDOWS:
        yield from every
        return
    yield from (every[number * (len(every) - 1) // (_WINDOWS - 1)] for number in range(_WINDOWS))
