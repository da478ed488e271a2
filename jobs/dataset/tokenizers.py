"""Tokenizers by name: bytes need nothing, the others what they are called after."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from .errors import DatasetError

_ENDS = ("<|endoftext|>", "</s>", "<eos>")
_TWO_BYTES = 1 << 16


@dataclass(frozen=True)
class Tokenizer:
    """`encode` gives the ids of a text as little-endian bytes, `width` bytes each; `end` closes a document."""

    vocab: int
    width: int
    end: bytes
    encode: Callable[[str], bytes]


def tokenizer_named(name: str) -> Tokenizer:
    """Return `bytes`, `tiktoken:NAME` or `tokenizers:FILE`. Raises DatasetError when it is unknown or not installed."""
    kind, _, which = name.partition(":")
    if name == "bytes":
        # UTF-16 of Latin-1 is each byte as 16 bits: a widening that runs at memory speed.
        return Tokenizer(257, 2, b"\x00\x01", lambda text: text.encode().decode("latin-1").encode("utf-16-le"))
    if kind not in {"tiktoken", "tokenizers"} or not which:
        raise DatasetError(f"there is no tokenizer '{name}'", "write bytes, tiktoken:NAME or tokenizers:FILE.json")
    try:
        library = import_module(kind)
    except ImportError:
        host = socket.gethostname()
        raise DatasetError(f"{kind} is not installed on {host}", f"`pip install {kind}` there, or take bytes") from None
    try:
        if kind == "tiktoken":
            coder = library.get_encoding(which)
            return of_ids(coder.n_vocab, coder.eot_token, coder.encode_ordinary)
        loaded = library.Tokenizer.from_file(which)
    except Exception as error:  # both libraries raise plain Exception
        raise DatasetError(f"{kind} cannot load '{which}' ({error})", "correct the name, or take bytes") from error
    end = next((found for token in _ENDS if (found := loaded.token_to_id(token)) is not None), None)
    if end is None:
        raise DatasetError(f"{which} has none of {', '.join(_ENDS)} to end a document with", "add one to it")
    return of_ids(loaded.get_vocab_size(), end, lambda text: loaded.encode(text).ids)


def of_ids(vocab: int, end: int, encode: Callable[[str], Sequence[int]]) -> Tokenizer:
    """Return a tokenizer of a function that gives numbers; two bytes hold an id where the vocabulary allows it."""
    width = 2 if vocab <= _TWO_BYTES else 4
    kind = array_kind(width)
    return Tokenizer(vocab, width, array(kind, [end]).tobytes(), lambda text: array(kind, encode(text)).tobytes())


def array_kind(width: int) -> str:
    """Return the array type code of an unsigned id of `width` bytes."""
    return {2: "H", 4: "I"}[width]
