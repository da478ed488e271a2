"""Splits files of JSON lines into chunks, and extracts the text from a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DatasetError

_PACKED = {b"\x1f\x8b": "gzip -dk", b"\x28\xb5\x2f\xfd": "zstd -dk", b"BZh": "bzip2 -dk", b"\xfd7zXZ": "xz -dk"}


@dataclass(frozen=True)
class Chunk:
    """The lines of a file that begin at the byte offset `start` or later, but before `end`."""

    number: int
    file: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def inputs(path: Path) -> list[Path]:
    """Return the file, or the *.jsonl files in a folder, sorted by name.

    Raises DatasetError if there are no such files, or if a file is compressed or cannot be read.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise DatasetError(f"{path} contains no *.jsonl files", "use a .jsonl file, or a folder of .jsonl files")
    for file in files:
        try:
            with file.open("rb") as opened:
                head = opened.read(8)
        except OSError as error:
            raise DatasetError(f"{file} cannot be read ({error.strerror})", "use a file of JSON lines") from None
        for magic, command in _PACKED.items():
            if head.startswith(magic):
                problem = f"{file} is compressed; only plain text can be split into chunks"
                raise DatasetError(problem, f"run `{command} {file}`")
    return files


def chunks(files: list[tuple[str, int]], size: int) -> list[Chunk]:
    """Split files, given as (name, bytes), into chunks of at most `size` bytes."""
    cuts = [(name, at, min(at + size, length)) for name, length in files for at in range(0, length, size)]
    return [Chunk(number, *cut) for number, cut in enumerate(cuts)]


def lines_of(chunk: Chunk) -> Iterator[bytes]:
    """Yield the lines that begin within the chunk. The last line can end beyond the chunk."""
    with open(chunk.file, "rb") as file:
        at = chunk.start
        if at:
            file.seek(at - 1)
            # Skip the rest of the line that begins in the previous chunk. The rest may be only the newline.
            at += len(file.readline()) - 1
        while at < chunk.end and (line := file.readline()):
            at += len(line)
            yield line


def text_of(line: bytes, key: str) -> tuple[str, str]:
    """Return (text, "") for a valid line and ("", problem) for a bad line. Both are empty for a blank line."""
    if not line.strip():
        return "", ""
    try:
        value: Any = json.loads(line)
        text = value.get(key) if isinstance(value, dict) else None
        if isinstance(text, str):
            text.encode()
            return text, ""
    except UnicodeDecodeError as error:
        return "", f"is not UTF-8 at byte {error.start}"
    except UnicodeEncodeError:
        return "", "contains an unpaired surrogate"
    except (ValueError, RecursionError) as error:
        return "", f"is not JSON ({error})"
    return "", f"has no text with the key '{key}'" if isinstance(value, dict) else "is not a JSON object"
