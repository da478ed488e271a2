"""Reads and writes a dataset's files. Files are written atomically."""

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
"""Megatron's type codes by bytes per token id: uint16 and int32 (core/datasets/indexed_dataset.py, DType)."""
PREPARE_AGAIN = "create the dataset again"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file, which replaces `path` after it has been completely written to disk."""
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
    """Return the path to a dataset's file. `name` can contain dots."""
    return name.with_name(name.name + suffix)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or damaged."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def write_index(name: Path, sizes: array[int], coder: Tokenizer, facts: dict[str, Any]) -> dict[str, Any]:
    """Write NAME.json and NAME.idx, and return the facts in NAME.json. `sizes`: number of tokens in each document.

    NAME.idx contains, in this order:

    - header: magic, version, type code, number of sequences, length of the document list
    - size of each sequence in tokens (int32)
    - offset of each sequence in bytes (int64)
    - document list (int64): index of the first sequence of each document, followed by the number of sequences
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
    """Contents of an .idx file. `width`: bytes per token id. `sizes`: number of tokens in each document."""

    width: int
    sizes: array[int]


def read_index(path: Path) -> Index:
    """Read an .idx file. Raises DatasetError if it is damaged or in a different format."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "correct the path, or create the dataset first"
        raise DatasetError(f"{path} cannot be read ({error.strerror})", fix) from None
    if len(content) < _HEADER.size or not content.startswith(MAGIC):
        raise DatasetError(f"{path} is not an index of this format", PREPARE_AGAIN)
    _, version, code, count, listed = _HEADER.unpack_from(content)
    width = next((width for width, known in _CODES.items() if known == code), None)
    if version != _VERSION or width is None:
        supported = "only version 1 and types 8 and 4 are supported"
        raise DatasetError(f"{path} has version {version} and type {code}; {supported}", PREPARE_AGAIN)
    expected = _HEADER.size + 12 * count + 8 * listed
    if len(content) != expected:
        raise DatasetError(f"{path} has {len(content)} bytes, but its header requires {expected}", PREPARE_AGAIN)
    body = content[_HEADER.size :]
    sizes = array("i", body[: 4 * count])
    pointers, documents = array("q", body[4 * count : 12 * count]), array("q", body[12 * count :])
    if not sizes:
        raise DatasetError(f"{path} lists no documents", PREPARE_AGAIN)
    if min(sizes) < 1:
        raise DatasetError(f"{path} lists an empty document", PREPARE_AGAIN)
    expected_pointers = array("q", accumulate((size * width for size in sizes), initial=0))[:-1]
    if pointers != expected_pointers:
        wrong = next(number for number, at in enumerate(expected_pointers) if at != pointers[number])
        raise DatasetError(f"{path}: document {wrong} does not begin where the previous document ends", PREPARE_AGAIN)
    listed = list(documents)
    if listed[:1] != [0] or listed[-1] != count or listed != sorted(listed):
        raise DatasetError(f"{path}: its document list does not range from 0 to {count}", PREPARE_AGAIN)
    return Index(width, sizes)
