"""The output of a command: shown line by line while it runs, kept as its result, remembered for its error message."""

from __future__ import annotations

import codecs
import os
import selectors
import time
from collections import deque
from collections.abc import Callable

from offline.resources import ResourceError
from offline.values import Value

_CHUNK = 65536
_TAIL_LINES = 25
_SHOWN: dict[Value, tuple[str, ...]] = {
    None: ("stdout", "stderr"),
    "stdoutAndStderr": ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
    "none": (),
}


class Stream:
    """One of a command's two outputs. `tail` is shared by both, so that it reads as a terminal would have."""

    def __init__(self, tail: deque[str], show: Callable[[str], None] | None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self._unfinished = ""
        self._tail = tail
        self._show = show

    @property
    def text(self) -> str:
        """All of it, without the last newline."""
        return "".join(self._parts).removesuffix("\n")

    def feed(self, data: bytes) -> None:
        """Take what was read; b"" is the end."""
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
    """Both outputs of a command. `logging` is the property of that name; `show` takes the lines it lets through."""

    def __init__(self, logging: Value, show: Callable[[str], None]) -> None:
        shown = _SHOWN[logging]
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.stdout = Stream(self._tail, show if "stdout" in shown else None)
        self.stderr = Stream(self._tail, show if "stderr" in shown else None)

    @property
    def tail(self) -> str:
        """The last lines of both."""
        return "\n".join(self._tail)


class Pump:
    """Moves a command's three streams until both outputs end. It owns the descriptors; close it."""

    def __init__(self, capture: Capture, *, stdout: int, stderr: int, stdin: int | None, data: bytes) -> None:
        self._selector = selectors.DefaultSelector()
        self._data = memoryview(data)
        for descriptor, stream in ((stdout, capture.stdout), (stderr, capture.stderr)):
            self._selector.register(descriptor, selectors.EVENT_READ, stream)
        if stdin is not None:
            os.set_blocking(stdin, False)
            self._selector.register(stdin, selectors.EVENT_WRITE, None)
        self._outputs = 2

    def run(self, seconds: float) -> None:
        """Move data until both outputs end. Raises ResourceError after `seconds` (0: never)."""
        deadline = time.monotonic() + seconds if seconds else None
        while self._outputs:
            left = deadline and deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ResourceError(f"ended because it took longer than {seconds:g} s (customTimeouts)")
            for key, _ in self._selector.select(left):
                self._read(key) if key.data else self._write(key.fd)

    def close(self) -> None:
        """Close what is still open."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        self._selector.close()

    def _read(self, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, _CHUNK)
        key.data.feed(data)
        if not data:
            self._outputs -= 1
            self._drop(key.fd)

    def _write(self, descriptor: int) -> None:
        try:
            self._data = self._data[os.write(descriptor, self._data) :]
        except BrokenPipeError:
            self._data = self._data[:0]  # a command need not read its input
        if not self._data:
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
