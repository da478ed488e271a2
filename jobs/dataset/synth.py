"""A dataset made from nothing: documents that count on from a random start, so that a loss has something to fall to."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import part, replacing, write_index
from .tokenizers import array_kind, of_ids

_MEAN = 1024
"""Tokens of a document, about."""


def synthesise(name: Path, tokens: int, vocab: int, seed: int, *, force: bool) -> dict[str, Any]:
    """Write a dataset of `tokens` ids below `vocab`, the last of which ends documents. The same seed, the same bytes.

    Returns what NAME.json holds. Raises DatasetError when the name is taken or the disk is full.
    """
    if part(name, ".idx").exists() and not force:
        raise DatasetError(f"{name}.idx is there", "choose another name, or --force")
    part(name, ".idx").unlink(missing_ok=True)
    coder = of_ids(vocab, vocab - 1, lambda text: [int(word) for word in text.split()])
    counting = array(array_kind(coder.width), range(vocab - 1))
    longest = _MEAN * 3 // 2
    ring = counting * (longest // (vocab - 1) + 2)
    dice, sizes, left = random.Random(seed), array("i"), tokens  # noqa: S311  (data, not a secret)
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(part(name, ".bin")) as file:
            while left:
                size = min(dice.randint(_MEAN // 2, longest), left)
                begin = dice.randrange(vocab - 1)
                file.write(ring[begin : begin + size - 1].tobytes() + coder.end)
                sizes.append(size)
                left -= size
        return write_index(name, sizes, coder, {"synthetic": seed})
    except OSError as error:
        raise DatasetError(f"{error.filename or name}: {error.strerror}", "make room, and start again") from error
