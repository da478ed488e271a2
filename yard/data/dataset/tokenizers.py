"""The tokenizers. `bytes` has no dependencies; `tiktoken` and `tokenizers` need the Python package of the same name."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from .errors import DatasetError

_ENDS = ("<|endoftext|>", "</s>", "<eos>")
_TWO_BYTES = 1 << 16
ARRAY_KINDS = {2: "H", 4: "I"}
"""Array type codes for unsigned integers, by bytes per token id."""


@dataclass(frozen=True)
class Tokenizer:
    """`encode` returns a string's token ids, little endian, `width` bytes each. `end`: the id that ends a document."""

    vocab: int
    width: int
    end: bytes
    encode: Callable[[str], bytes]


def tokenizer_named(name: str) -> Tokenizer:
    """Return the tokenizer `bytes`, `tiktoken:NAME` or `tokenizers:FILE`.

    Raises DatasetError if it is unknown or not installed.
    """
    kind, _, which = name.partition(":")
    if name == "bytes":
        # Encoding Latin-1 text as UTF-16 converts each byte to 16 bits at memory speed.
        return Tokenizer(257, 2, b"\x00\x01", lambda text: text.encode().decode("latin-1").encode("utf-16-le"))
    if kind not in {"tiktoken", "tokenizers"} or not which:
        raise DatasetError(f"the tokenizer '{name}' is unknown", "use bytes, tiktoken:NAME or tokenizers:FILE.json")
    try:
        library = import_module(kind)
    except ImportError:
        host = socket.gethostname()
        raise DatasetError(f"{kind} is not installed on {host}", f"run `pip install {kind}`, or use bytes") from None
    try:
        if kind == "tiktoken":
            coder = library.get_encoding(which)
            return of_ids(coder.n_vocab, coder.eot_token, coder.encode_ordinary)
        loaded = library.Tokenizer.from_file(which)
    except Exception as error:  # both libraries raise plain Exception
        raise DatasetError(f"{kind} cannot load '{which}' ({error})", "correct the name, or use bytes") from error
    end = next((found for token in _ENDS if (found := loaded.token_to_id(token)) is not None), None)
    if end is None:
        raise DatasetError(f"{which} has no end-of-document token ({', '.join(_ENDS)})", "add one of them")
    return of_ids(loaded.get_vocab_size(), end, lambda text: loaded.encode(text).ids)


def of_ids(vocab: int, end: int, encode: Callable[[str], Sequence[int]]) -> Tokenizer:
    """Return a tokenizer that calls `encode`. Ids have 2 bytes if the vocabulary has at most 65536 ids."""
    width = 2 if vocab <= _TWO_BYTES else 4
    kind = ARRAY_KINDS[width]
    return Tokenizer(vocab, width, array(kind, [end]).tobytes(), lambda text: array(kind, encode(text)).tobytes())
