"""Creates a synthetic dataset of token ids, and verifies datasets.

`yard data` sends this file to a host and runs it there, so it needs only Python 3.10 and imports no other modules of
the project. A dataset NAME consists of three files, of which NAME.idx is written last.

NAME.bin    token ids, little endian, 2 or 4 bytes each; train.py maps this file into memory
NAME.idx    the documents' sizes and offsets, in the format that Megatron and gpt-neox use
NAME.json   the size of the vocabulary, the number of bytes per token id, and the seed
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
"""The fields: magic, version, type code, number of sequences, and length of the document list."""
_TYPE_CODES = {2: 8, 4: 4}
"""Megatron's type codes for 2 and 4 bytes per token id: uint16 and int32 (core/datasets/indexed_dataset.py, DType)."""
_ARRAY_KINDS = {2: "H", 4: "I"}

_MEAN_TOKENS = 1024
_WINDOW_BYTES = 1 << 16
_WINDOWS = 64
"""The number of evenly spaced windows that a quick check reads, including both ends of the file."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_CREATE_AGAIN = "create the dataset again"


class DatasetError(Exception):
    """A dataset or an option is invalid."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}. Fix: {fix}.")


def count(text: str) -> int:
    """Convert a string such as 5000, 10K, 3M or 2G to a number (K is 1000). Raises ValueError if it is invalid."""
    digits, unit = (text, "") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit not in _UNITS or not digits.isdigit() or not int(digits):
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def part(name: Path, suffix: str) -> Path:
    """Return the path of one of a dataset's files. `name` can contain dots."""
    return name.with_name(name.name + suffix)


def synthesise(name: Path, tokens: int, vocab: int, seed: int, *, force: bool) -> dict[str, Any]:
    """Write a dataset of `tokens` token ids that are less than `vocab`. Return the contents of NAME.json.

    The ids in a document count up from a random id, a pattern that models can learn. Each document ends with the id
    `vocab` - 1. The same seed gives the same bytes. Raises DatasetError if the dataset exists, unless `force` is set.
    """
    if part(name, ".idx").exists() and not force:
        raise DatasetError(f"{name}.idx exists", "use another name, or --force")
    part(name, ".idx").unlink(missing_ok=True)
    width = 2 if vocab <= 1 << 16 else 4
    kind, longest = _ARRAY_KINDS[width], _MEAN_TOKENS * 3 // 2
    ring = array(kind, range(vocab - 1)) * (longest // (vocab - 1) + 2)
    end = array(kind, [vocab - 1]).tobytes()
    dice, sizes, left = random.Random(seed), array("i"), tokens  # noqa: S311  (not a secret)
    name.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(part(name, ".bin")) as file:
        while left:
            size = min(dice.randint(_MEAN_TOKENS // 2, longest), left)
            begin = dice.randrange(vocab - 1)
            file.write(ring[begin : begin + size - 1].tobytes() + end)
            sizes.append(size)
            left -= size
    facts = {"synthetic": seed, "vocab": vocab, "token_bytes": width, "documents": len(sizes), "tokens": tokens}
    with _replacing(part(name, ".json")) as file:
        file.write(json.dumps(facts, indent=1).encode() + b"\n")
    with _replacing(part(name, ".idx")) as file:
        file.write(_HEADER.pack(_MAGIC, 1, _TYPE_CODES[width], len(sizes), len(sizes) + 1))
        for numbers in _lists(sizes, width):
            file.write(numbers.tobytes())
    return facts


def verify(name: Path, *, full: bool) -> dict[str, Any]:
    """Check the index, the memory mapping and the token ids in 64 windows. If `full` is set, check all token ids.

    Return the dataset's size, the number of checked tokens (`looked_at`), and a digest of the checked bytes. Raises
    DatasetError if the dataset is damaged.
    """
    width, sizes = _read_index(part(name, ".idx"))
    path, vocab = part(name, ".bin"), _vocab(name)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror})", _CREATE_AGAIN) from None
    if size != (expected := width * sum(sizes)):
        raise DatasetError(f"{path} has {size} bytes, but its index requires {expected}", _CREATE_AGAIN)
    digest, largest, seen = 0, 0, 0
    with path.open("rb", buffering=0) as file, _mapped(path, file.fileno(), size) as memory:
        for at in _windows(size, full=full):
            window = memory[at : at + _WINDOW_BYTES]
            file.seek(at)
            if file.read(_WINDOW_BYTES) != window:
                fix = "use a file system with coherent memory mapping (NFS 4.2, not a fuse mount)"
                raise DatasetError(f"{path} has different contents when mapped into memory, at byte {at}", fix)
            digest, seen = zlib.crc32(window, digest), seen + len(window) // width
            largest = max(largest, *array(_ARRAY_KINDS[width], window))
    if vocab is not None and largest >= vocab:
        raise DatasetError(f"{path} contains token {largest}, but its vocabulary has {vocab} tokens", _CREATE_AGAIN)
    facts = {"documents": len(sizes), "tokens": sum(sizes), "token_bytes": width, "vocab": vocab}
    return {**facts, "looked_at": seen, "digest": f"{digest:08x}"}


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file. When it has been completely written to disk, it replaces `path`."""
    new = path.with_name(f"{path.name}.tmp")
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _lists(sizes: array[int], width: int) -> tuple[array[int], ...]:
    """Return the three lists in an index: the documents' sizes in tokens, offsets in bytes, and first sequences.

    Each document is one sequence. The last list ends with the number of sequences.
    """
    offsets = array("q", accumulate((size * width for size in sizes), initial=0))[:-1]
    return sizes, offsets, array("q", range(len(sizes) + 1))


def _read_index(path: Path) -> tuple[int, array[int]]:
    """Return the bytes per token id and the documents' sizes in tokens. Each document must be a single sequence."""
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "correct the path, or create the dataset first"
        raise DatasetError(f"{path} cannot be read ({error.strerror})", fix) from None
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise DatasetError(f"{path} is not an index of this format", _CREATE_AGAIN)
    _, version, code, documents, _ = _HEADER.unpack_from(content)
    width = next((width for width, known in _TYPE_CODES.items() if known == code), None)
    if version != 1 or width is None:
        supported = "only version 1 and types 8 and 4 are supported"
        raise DatasetError(f"{path} has version {version} and type {code}; {supported}", _CREATE_AGAIN)
    sizes = array("i")
    sizes.frombytes(content[_HEADER.size : _HEADER.size + 4 * min(documents, len(content) // 4)])
    if b"".join(numbers.tobytes() for numbers in _lists(sizes, width)) != content[_HEADER.size :]:
        raise DatasetError(f"{path} is damaged: its offsets or lists do not match the sizes", _CREATE_AGAIN)
    if not sizes or min(sizes) < 1:
        raise DatasetError(f"{path} lists no documents, or an empty one", _CREATE_AGAIN)
    return width, sizes


def _vocab(name: Path) -> int | None:
    """Return the vocabulary's size, or None if the dataset has no .json file because another tool has created it."""
    try:
        return int(json.loads(part(name, ".json").read_bytes())["vocab"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise DatasetError(f"{name}.json does not contain the size of the vocabulary", _CREATE_AGAIN) from None


def _mapped(path: Path, number: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(number, size, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        fix = "use a file system that supports mmap: the head's NFS share or a local disk"
        raise DatasetError(f"{path} cannot be mapped into memory ({os.strerror(error.errno or 0)})", fix) from error


def _windows(size: int, *, full: bool) -> Sequence[int]:
    every = range(0, size, _WINDOW_BYTES)
    if full or len(every) <= _WINDOWS:
        return every
    return [every[number * (len(every) - 1) // (_WINDOWS - 1)] for number in range(_WINDOWS)]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dataset", description="token files for training")
    parser.add_argument("--json", action="store_true")
    kinds = parser.add_subparsers(dest="kind", required=True)
    synth = kinds.add_parser("synth", help="create a synthetic dataset")
    synth.add_argument("name", type=Path)
    synth.add_argument("--tokens", type=count, default=10_000_000)
    synth.add_argument("--vocab", type=int, default=512)
    synth.add_argument("--seed", type=int, default=1)
    synth.add_argument("--force", action="store_true", help="replace an existing dataset")
    check = kinds.add_parser("verify", help="check a dataset")
    check.add_argument("name", type=Path)
    check.add_argument("--full", action="store_true", help="read every token")
    chosen = parser.parse_args(arguments)
    if chosen.name.suffix in {".bin", ".idx", ".json"}:
        chosen.name = chosen.name.with_suffix("")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        if options.kind == "synth":
            facts = synthesise(options.name, options.tokens, options.vocab, options.seed, force=options.force)
        else:
            facts = verify(options.name, full=options.full)
    except DatasetError as error:
        sys.stderr.write(f"dataset: {error}\n")
        return 1
    except OSError as error:
        fix = "free disk space or correct the permissions, and run the command again"
        sys.stderr.write(f"dataset: {error.filename or options.name}: {error.strerror}. Fix: {fix}.\n")
        return 1
    sys.stdout.write(f"{json.dumps({'version': 1, **facts}) if options.json else _summary(options.name, facts)}\n")
    return 0


def _summary(name: Path, facts: dict[str, Any]) -> str:
    lines = [f"{name}: {facts['documents']} documents, {facts['tokens']} tokens of {facts['token_bytes']} bytes"]
    if "looked_at" in facts:
        lines.append(f"no problem found; {facts['looked_at']} tokens checked, digest {facts['digest']}")
    if facts["vocab"]:
        lines.append(f"vocabulary {facts['vocab']}: train.py --data {name}.bin --token-bytes {facts['token_bytes']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
