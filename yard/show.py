"""Prints text, tables and JSON. Only the functions that need rich import it, because the import is slow."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from trainyard.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_RESET = "\x1b[0m"
_PIPE_WIDTH = 200

INTERRUPTED = 130
"""The exit code that shells use after SIGINT."""


def say(text: str) -> None:
    """Print a message on standard output. Control characters are escaped."""
    _write(sys.stdout, printable(text))


def warn(text: str) -> None:
    """Print a message on standard error. Control characters are escaped."""
    _write(sys.stderr, printable(text))


def payload(text: str) -> None:
    """Print a log or a script on standard output. On a terminal, control characters except colours are escaped."""
    if not sys.stdout.isatty():
        _write(sys.stdout, text)
        return
    # Carriage returns from progress bars become line breaks.
    shown = printable(text.replace("\r\n", "\n").replace("\r", "\n"), colours=True)
    _write(sys.stdout, shown + _RESET if "\x1b" in shown else shown)


def say_json(value: Any) -> None:
    """Print a JSON document on one line. The object, or each object of a list, contains the version of its format.

    A list stays a list, because programs that read its elements would fail if an object contained the list.
    """
    if isinstance(value, list | tuple):
        shown: Any = [{"version": 1, **row} for row in value]
    else:
        shown = {"version": 1, **value}
    _write(sys.stdout, json.dumps(shown))


def answer(text: str, facts: Any, as_json: bool) -> None:
    """Print a command's result: the message `text` or, if `as_json` is set, `facts` as one JSON document."""
    if as_json:
        say_json(facts)
    else:
        say(text)


def _write(stream: IO[str], text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")
    stream.flush()


class _SgrOnly:
    """A stream for rich that escapes all control characters except SGR sequences.

    Unless it writes to a terminal, it also removes the padding that rich adds to the last column.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        shown = printable(text, colours=True)
        return self._stream.write(shown if self._stream.isatty() else re.sub(r" +(?=\n)", "", shown))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Console:
    """Return a console for standard output. In a pipe, the console has 200 columns, so that rich truncates no cells."""
    from rich.console import Console  # noqa: PLC0415  (the import takes 60 ms)

    stream: Any = _SgrOnly(sys.stdout)
    return Console(file=stream) if sys.stdout.isatty() else Console(file=stream, width=_PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], colours: dict[str, str] | None = None) -> None:
    """Print a table. `colours` maps the text of a cell to a style."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(cell), style=(colours or {}).get(cell, "")) for cell in row))
    console().print(drawn)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as '1 node' or '2 nodes'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: int) -> str:
    """Return a duration as text, such as '42 s', '12 min' or '3 h 05'."""
    if seconds < 120:  # noqa: PLR2004  (two minutes)
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 120:  # noqa: PLR2004  (two hours)
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02}"
