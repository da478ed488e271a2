"""How yard speaks: JSON for programs, tables for people. rich is imported only when a table is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def say(text: str) -> None:
    """Print text for people, or a payload, on standard output."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """Print one JSON document on one line."""
    say(json.dumps(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], colours: dict[str, str] | None = None) -> None:
    """Print a table. `colours` maps a cell's text to a style. A pipe gets the whole width: nothing is cut off."""
    from rich.console import Console  # noqa: PLC0415  (60 ms that most commands do not need)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=(colours or {}).get(cell, "")) for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(drawn)


def duration(seconds: int) -> str:
    """Return a time span as people say it: '42 s', '12 min', '3 h 05'."""
    if seconds < 120:  # noqa: PLR2004  (two minutes)
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 120:  # noqa: PLR2004  (two hours)
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02}"
