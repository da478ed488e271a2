"""Text as gzip, the same bytes wherever it is made. Pure.

Not zlib's: its builds differ in the bytes that they make (Apple's, zlib-ng), and other user-data is another machine.
Made of two blocks: what a host has for itself, as it is, and what it shares with others, deflated once for all.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache

_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""RFC 1952: deflate, without name and time, from no system in particular."""
_SHARED = re.compile(r"^ *=== /(?!etc/trainyard/)", re.MULTILINE)
"""Where the install script's files begin that every host of its kind has (components/install.py)."""
_SHORTEST, _LONGEST, _FARTHEST = 3, 257, 32768
_MOST_AS_IT_IS = 65535
_LENGTH_CODES, _DISTANCE_CODES = 28, 30


def pack(text: str) -> bytes:
    """Return the text as one gzip member. Raises ValueError where a host's own part is beyond 64 KiB."""
    begins = found.start() if (found := _SHARED.search(text)) else len(text)
    own, data = text[:begins].encode(), text.encode()
    if len(own) > _MOST_AS_IT_IS:
        raise ValueError(f"{len(own)} bytes of a host's own; {_MOST_AS_IT_IS} can be packed")
    as_it_is = struct.pack("<BHH", 0, len(own), len(own) ^ 0xFFFF) + own
    return _HEADER + as_it_is + _deflated(text[begins:]) + struct.pack("<II", zlib.crc32(data), len(data))


@cache
def _deflated(text: str) -> bytes:
    """Return the last block of a deflate stream, in fixed codes (RFC 1951, 3.2.6)."""
    # Final, fixed codes; the bits of a stream are collected in one number, the first lowest.
    bits, used, packed = 0b011, 3, bytearray()
    for value, width in _codes(text.encode()):
        bits |= value << used
        used += width
        whole = used // 8
        packed += (bits & ((1 << 8 * whole) - 1)).to_bytes(whole, "little")
        bits >>= 8 * whole
        used -= 8 * whole
    return bytes(packed) + bits.to_bytes(1, "little") * (used > 0)


def _codes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the bits of every literal and repetition, and of the end, each with its width."""
    before: dict[bytes, int] = {}
    at = 0
    while at < len(data):
        beginning = data[at : at + _SHORTEST + 1]
        earlier = before.get(beginning, -_FARTHEST)
        before[beginning] = at
        if at - earlier >= _FARTHEST:
            yield _literal(data[at])
            at += 1
            continue
        length = _common(data, earlier, at)
        yield _REPEATS[length]
        yield _distance(at - earlier)
        for inside in range(at + 1, at + length):
            before[data[inside : inside + _SHORTEST + 1]] = inside
        at += length
    yield _literal(256)


def _common(data: bytes, earlier: int, at: int) -> int:
    """Return how far the text at two places is the same."""
    most = min(_LONGEST, len(data) - at)
    length = min(_SHORTEST, most)
    while length < most and data[earlier + length] == data[at + length]:
        length += 1
    return length


@cache
def _literal(symbol: int) -> tuple[int, int]:
    if symbol < 144:  # noqa: PLR2004  (the table of 3.2.6)
        return _reversed(0x30 + symbol, 8), 8
    if symbol < 256:  # noqa: PLR2004
        return _reversed(0x190 + symbol - 144, 9), 9
    if symbol < 280:  # noqa: PLR2004
        return _reversed(symbol - 256, 7), 7
    return _reversed(0xC0 + symbol - 280, 8), 8


@cache
def _distance(distance: int) -> tuple[int, int]:
    base, code, extra = next(row for row in reversed(_DISTANCES) if row[0] <= distance)
    return _reversed(code, 5) | (distance - base) << 5, 5 + extra


def _ranges(first: int, codes: int, plain: int) -> list[tuple[int, int, int]]:
    """Return (first value, code, extra bits) of each code; as many as `plain` stand for values that share one less."""
    rows, base = [], first
    for code in range(codes):
        extra = max(0, code // plain - 1)
        rows.append((base, code, extra))
        base += 1 << extra
    return rows


def _reversed(code: int, width: int) -> int:
    """Return a code's bits with the first lowest: codes begin with their highest bit, all else with the lowest."""
    return int(f"{code:0{width}b}"[::-1], 2)


def _repeats() -> dict[int, tuple[int, int]]:
    made: dict[int, tuple[int, int]] = {}
    for base, code, extra in _ranges(_SHORTEST, _LENGTH_CODES, 4):
        bits, width = _literal(257 + code)
        made |= {base + more: (bits | more << width, width + extra) for more in range(1 << extra)}
    return made


_DISTANCES = _ranges(1, _DISTANCE_CODES, 2)
_REPEATS = _repeats()
