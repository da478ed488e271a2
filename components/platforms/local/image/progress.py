"""Progress of a build: a live line on a terminal, one line per phase anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class BuildProgress:
    """Shows the phase and the time since the start.

    with BuildProgress("golden image") as progress:
        progress.phase("install packages")
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._live: Progress | None = None
        if self._stream.isatty():
            self._live = _live(title, self._stream)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def phase(self, text: str) -> None:
        """Say what goes on now."""
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=text)
            return
        self._line(text)

    def __enter__(self) -> BuildProgress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        self._line("done" if kind is None else "failed")

    def _line(self, text: str) -> None:
        self._stream.write(f"{self._title}: {self.elapsed:4.0f} s  {text}\n")
        self._stream.flush()


def _live(title: str, stream: TextIO) -> Progress:
    # Imported here: every preview imports this module, and only a build on a terminal draws.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn(f"{title}: {{task.description}}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(file=stream), transient=True)
    progress.add_task("start", total=None)
    return progress
