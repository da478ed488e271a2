"""Output of the gate: lines with the elapsed time, without control characters."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

SILENCE_SECONDS = 50.0
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with control characters as escapes, like trainyard/printable.py.

    The status text comes from workers, and `pulumi up` prints the output of this program on a terminal.
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write an escaped line to the stream or stdout, and flush it, because Python buffers output to a pipe."""
    output = stream or sys.stdout
    output.write(f"{printable(text)}\n")
    output.flush()


class Progress:
    """Prints lines with the elapsed time, and the pending condition after a pause without output."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._printed = clock()
        self._lock = threading.Lock()
        self.waiting_for = "the nodes"

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def print_line(self, line: str) -> None:
        """Print a line with the elapsed time."""
        self._printed = self._clock()
        write_line(f"[{self.seconds:5.1f} s] {line}")

    def tick(self) -> None:
        """Print the pending condition if the last line is older than SILENCE_SECONDS."""
        with self._lock:
            if self.waiting_for and self._clock() - self._printed >= SILENCE_SECONDS:
                self.print_line(f"waiting for {self.waiting_for}")

    def finish(self) -> None:
        """Stop printing, so that the result is the last line."""
        with self._lock:
            self.waiting_for = ""

    def watch(self) -> None:
        """Call tick() in a background thread, because some commands of the gate run for minutes."""
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def _tick_for_ever(self) -> None:
        while True:
            time.sleep(5)
            self.tick()
