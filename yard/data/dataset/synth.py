"""Creates a synthetic dataset. Each document contains consecutive ids from a random start, which a model can learn."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import part, replacing, write_index
from .tokenizers import ARRAY_KINDS, of_ids

_MEAN_TOKENS = 1024


def synthesise(name: Path, tokens: int, vocab: int, seed: int, *, force: bool) -> dict[str, Any]:
    """Write a dataset of `tokens` ids below `vocab`. The id `vocab` - 1 ends a document.

    The same seed produces the same bytes. Returns the facts in NAME.json. Raises DatasetError if the dataset exists.
    """
    if part(name, ".idx").exists() and not force:
        raise DatasetError(f"{name}.idx exists", "use another name, or --force")
    part(name, ".idx").unlink(missing_ok=True)
    coder = of_ids(vocab, vocab - 1, lambda text: [int(word) for word in text.split()])
    counting = array(ARRAY_KINDS[coder.width], range(vocab - 1))
    longest = _MEAN_TOKENS * 3 // 2
    ring = counting * (longest // (vocab - 1) + 2)
    dice, sizes, left = random.Random(seed), array("i"), tokens  # noqa: S311  (not a secret)
    name.parent.mkdir(parents=True, exist_ok=True)
    with replacing(part(name, ".bin")) as file:
        while left:
            size = min(dice.randint(_MEAN_TOKENS // 2, longest), left)
            begin = dice.randrange(vocab - 1)
            file.write(ring[begin : begin + size - 1].tobytes() + coder.end)
            sizes.append(size)
            left -= size
    return write_index(name, sizes, coder, {"synthetic": seed})
