"""Displays the progress of a build: a live line on a terminal, otherwise one line per phase."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class BuildProgress:
    """Context manager that displays the current phase of a build and the time since its start."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.monotonic()
        self._live = _live(title) if sys.stderr.isatty() else None

    def phase(self, text: str) -> None:
        """Display the name of the current phase."""
        if self._live is None:
            self._line(text)
        else:
            self._live.update(self._live.task_ids[0], description=text)

    def __enter__(self) -> BuildProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        self._line("done" if kind is None else "failed")

    def _line(self, text: str) -> None:
        sys.stderr.write(f"{self._title}: {time.monotonic() - self._begin:4.0f} s  {text}\n")
        sys.stderr.flush()


def _live(title: str) -> Progress:
    # Imported here because every preview imports this module, but only a build on a terminal needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn(f"{title}: {{task.description}}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task("start", total=None)
    return progress
