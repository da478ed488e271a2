"""Process sessions and signals. A session contains the child processes of a program even after it has ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from yard.show import warn

_SECONDS = 5.0
"""Time to wait after each signal."""


def end_session(session: int) -> None:
    """End all processes in a session, for example the plugins of a killed pulumi process.

    Local virtual machines run in separate sessions and are not affected.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _SECONDS
        for pid in session_members(session):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while session_members(session) and time.monotonic() < deadline:
            time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """Return the live processes in a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(int(folder.name))
    return found


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Print `message` and raise KeyboardInterrupt on the first SIGINT, SIGTERM or SIGHUP. Ignore later signals."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            # Child processes would inherit SIG_IGN, but they do not inherit a handler.
            signal.signal(each, lambda number, frame: None)
        warn(f"\ninterrupted: {message}")
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
