"""The files of a dataset: written so that they appear whole, read with every field checked."""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from .errors import DatasetError
from .tokenizers import Tokenizer

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
_CODES = {2: 8, 4: 4}
"""Bytes of an id -> Megatron's code of its type: uint16, int32 (core/datasets/indexed_dataset.py, DType)."""
_AGAIN = "prepare it again"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when it is complete and on disk, and never before."""
    new = path.with_name(f"{path.name}.tmp")
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def part(name: Path, suffix: str) -> Path:
    """Return the dataset's file of that suffix; a name may hold dots."""
    return name.with_name(name.name + suffix)


def write_index(name: Path, sizes: array[int], coder: Tokenizer, facts: dict[str, Any]) -> dict[str, Any]:
    """Write NAME.json and NAME.idx for a .bin of documents of `sizes` tokens. Returns what NAME.json holds.

    The index: magic, version, type code, number of sequences, length of the document list; then each sequence's size
    (int32) and place in bytes (int64), and the sequence at which each document begins and the last ends (int64).
    """
    count, width = len(sizes), coder.width
    facts = {**facts, "vocab": coder.vocab, "token_bytes": width, "documents": count, "tokens": sum(sizes)}
    pointers = array("q", accumulate((size * width for size in sizes), initial=0))
    pointers.pop()
    with replacing(part(name, ".json")) as file:
        file.write(json.dumps(facts, indent=1).encode() + b"\n")
    with replacing(part(name, ".idx")) as file:
        file.write(_HEADER.pack(MAGIC, _VERSION, _CODES[width], count, count + 1))
        for numbers in (sizes, pointers, array("q", range(count + 1))):
            file.write(numbers.tobytes())
    return facts


@dataclass(frozen=True)
class Index:
    """What an .idx says: bytes of an id, each sequence's tokens and place in bytes, and where documents begin."""

    width: int
    sizes: array[int]
    pointers: array[int]
    documents: array[int]

    @property
    def tokens(self) -> int:
        """All tokens."""
        return sum(self.sizes)


def read_index(path: Path) -> Index:
    """Read an .idx whole. Raises DatasetError when it is not one, or is cut short."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read ({error.strerror})", "correct the path, or prepare it first"
        ) from None
    if len(content) < _HEADER.size or not content.startswith(MAGIC):
        raise DatasetError(f"{path} is no index of this format", _AGAIN)
    _, version, code, count, listed = _HEADER.unpack_from(content)
    width = next((width for width, known in _CODES.items() if known == code), None)
    if version != _VERSION or width is None:
        raise DatasetError(f"{path} has version {version} and type {code}; 1 and 8 or 4 can be read", _AGAIN)
    expected = _HEADER.size + 12 * count + 8 * listed
    if len(content) != expected:
        raise DatasetError(f"{path} has {len(content)} bytes; its header promises {expected}", _AGAIN)
    sizes, pointers, documents = array("i"), array("q"), array("q")
    at = _HEADER.size
    for numbers, length in ((sizes, count), (pointers, count), (documents, listed)):
        end = at + length * numbers.itemsize
        numbers.frombytes(content[at:end])
        at = end
    return Index(width, sizes, pointers, documents)
