"""Sample lines for datasets and the expected tokens."""

from __future__ import annotations

import argparse
import array
import json
from pathlib import Path
from typing import Any

import yard.data.dataset

TEXTS = ["first", "zwölf Boxkämpfer \U0001f94a", "", "a\nb", "x" * 300, "last"]
FOLDER = Path(yard.data.dataset.__file__).parent


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text, "id": 1}).encode() + b"\n" for text in texts)


def request(source: Path, name: Path, **more: Any) -> argparse.Namespace:
    usual: dict[str, Any] = {
        "tokenizer": "bytes", "key": "text", "bad_lines": 0, "chunk": 100, "processes": 1, "force": False,
    }  # fmt: skip
    return argparse.Namespace(source=source, name=name, **{**usual, **more})


def quiet(done: int, total: int) -> None:
    pass


def tokens_of(name: Path, kind: str = "H") -> list[int]:
    return array.array(kind, Path(f"{name}.bin").read_bytes()).tolist()


def expected(texts: list[str]) -> list[int]:
    return [token for text in texts if text for token in (*text.encode(), 256)]
