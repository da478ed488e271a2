"""A running command, whose output is shown line by line and becomes the resource's output."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable

from offline.protocol import Operation
from offline.values import Properties, Value, is_secret, reveal

_TAIL_LINES = 25
_MOST_TEXT_SHOWN = 120
_SHOWN: dict[Value, tuple[str, ...]] = {
    None: ("stdout", "stderr"),
    "stdoutAndStderr": ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
    "none": (),
}


class Stream:
    """A command's standard output or standard error. `tell` receives each complete line that is not empty."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._unfinished = ""
        self._tell = tell

    @property
    def text(self) -> str:
        """The output so far, without the final newline."""
        return "".join(self._parts).removesuffix("\n")

    def feed(self, data: bytes) -> None:
        """Add output. Empty `data` marks the end of the file."""
        text = self._decoder.decode(data, final=not data)
        self._parts.append(text)
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if not data and self._unfinished:
            lines.append(self._unfinished)
        for line in filter(None, lines):
            self._tell(line)


class Run:
    """An execution of one of a resource's commands. `properties` are the resource's properties without secret marks."""

    def __init__(self, operation: Operation, properties: Properties, command: Value) -> None:
        self.operation = operation
        self.properties = {name: reveal(value) for name, value in properties.items()}
        self.text = str(reveal(command))
        self.hidden = is_secret(command)
        self.stdin = str(self.properties.get("stdin") or "").encode()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.stdout = Stream(lambda line: self._tell("stdout", line))
        self.stderr = Stream(lambda line: self._tell("stderr", line))

    def failure(self, ended: str) -> str:
        """Return an error message: how the command ended, its text (unless secret), and its last output."""
        first, *more = self.text.strip().split("\n")
        cut = first[:_MOST_TEXT_SHOWN]
        shown = "a secret command" if self.hidden else f"`{cut}{' ...' if more or cut != first else ''}`"
        tail = "\n".join(self._tail)
        return f"{ended}: running {shown}" + (f":\n{tail}" if tail else " (no output)")

    def _tell(self, stream: str, line: str) -> None:
        self._tail.append(line)
        if stream in _SHOWN[self.properties.get("logging")]:
            self.operation.status(line)
