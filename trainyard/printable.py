"""Escapes control characters in text from nodes and jobs. Otherwise, such characters could make the operator's terminal
hide text, replace text, or send input.
"""

from __future__ import annotations

import re

_SGR = r"\x1b\[[0-9;:]*m"
"""Select Graphic Rendition (SGR), which sets colours and other attributes of text (ECMA-48, 8.3.117)."""
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""C0 (without tab and line feed), DEL and C1; line separators; characters that change the text's direction; surrogates,
which represent invalid UTF-8 bytes."""
_UNSAFE = re.compile(f"{_SGR}|{_CONTROL}")


def printable(text: str, *, colours: bool = False) -> str:
    """Return the text with escapes (`\\x1b`) instead of control characters. `colours` keeps SGR sequences."""

    def escaped(found: re.Match[str]) -> str:
        if len(found[0]) == 1:
            return found[0].encode("unicode_escape").decode()
        return found[0] if colours else "\\x1b" + found[0][1:]

    return _UNSAFE.sub(escaped, text)
