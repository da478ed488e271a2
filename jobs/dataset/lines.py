"""JSON lines: a file cut at byte positions into chunks of whole lines, and the text of a line. Pure but for reading."""

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
    """The lines of a file that begin at bytes start..end."""

    number: int
    file: str
    start: int
    end: int


def inputs(path: Path) -> list[Path]:
    """Return the file, or a folder's *.jsonl in the order of their names. Raises DatasetError where there is none."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise DatasetError(f"{path} holds no *.jsonl", "name a file, or a folder with some")
    for file in files:
        try:
            with file.open("rb") as opened:
                head = opened.read(8)
        except OSError as error:
            raise DatasetError(f"{file} cannot be read ({error.strerror})", "name a file of JSON lines") from None
        for magic, command in _PACKED.items():
            if head.startswith(magic):
                raise DatasetError(
                    f"{file} is compressed; only plain text can be cut into chunks", f"`{command} {file}`"
                )
    return files


def chunks(files: list[tuple[str, int]], size: int) -> list[Chunk]:
    """Return the chunks of (file, bytes), in order."""
    cuts = [(name, at, min(at + size, length)) for name, length in files for at in range(0, length, size)]
    return [Chunk(number, *cut) for number, cut in enumerate(cuts)]


def lines_of(chunk: Chunk) -> Iterator[bytes]:
    """Yield the lines that begin within the chunk; the last may end beyond it."""
    with open(chunk.file, "rb") as file:
        at = max(chunk.start - 1, 0)
        file.seek(at)
        if chunk.start:
            at += len(file.readline())  # from the byte before: empty when a line begins at the very start
        while at < chunk.end and (line := file.readline()):
            at += len(line)
            yield line


def text_of(line: bytes, key: str) -> tuple[str, str]:
    """Return (text, "") of a line, or ("", what is wrong with it). Both are empty for one that is no document."""
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
        return "", "holds half of a surrogate pair"
    except (ValueError, RecursionError) as error:
        return "", f"is not JSON ({error})"
    return "", f"has no text under '{key}'" if isinstance(value, dict) else "is no JSON object"
