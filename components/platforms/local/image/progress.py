"""Prints the progress of a build."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class BuildProgress:
    """Context manager that prints each phase of a build with the time since its start."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.monotonic()

    def phase(self, text: str) -> None:
        """Print the name of the current phase."""
        sys.stderr.write(f"{self._title}: {time.monotonic() - self._begin:4.0f} s  {text}\n")
        sys.stderr.flush()

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.phase("done" if kind is None else "failed")
