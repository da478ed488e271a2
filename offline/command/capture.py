"""The output of a command, which is stored as its result and shown line by line while the command runs."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable

from offline.values import Value

_TAIL_LINES = 25
_SHOWN: dict[Value, tuple[str, ...]] = {
    None: ("stdout", "stderr"),
    "stdoutAndStderr": ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
    "none": (),
}


class Stream:
    """Standard output or standard error of a command.

    `tail` receives each complete line. `show` is called with each complete line, unless `show` is None.
    """

    def __init__(self, tail: deque[str], show: Callable[[str], None] | None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._unfinished = ""
        self._tail = tail
        self._show = show

    @property
    def text(self) -> str:
        """The output so far, without the final newline."""
        return "".join(self._parts).removesuffix("\n")

    def feed(self, data: bytes) -> None:
        """Add output. Empty `data` means end of file."""
        text = self._decoder.decode(data, final=not data)
        self._parts.append(text)
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if not data and self._unfinished:
            lines.append(self._unfinished)
        for line in filter(None, lines):
            self._tail.append(line)
            if self._show:
                self._show(line)


class Capture:
    """The standard output and standard error of a command.

    `logging` is the resource property that selects the output passed to `show`.
    """

    def __init__(self, logging: Value, show: Callable[[str], None]) -> None:
        shown = _SHOWN[logging]
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.stdout = Stream(self._tail, show if "stdout" in shown else None)
        self.stderr = Stream(self._tail, show if "stderr" in shown else None)

    @property
    def tail(self) -> str:
        """The last lines of both outputs, in order of arrival."""
        return "\n".join(self._tail)
