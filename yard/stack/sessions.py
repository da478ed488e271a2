"""Process sessions. A session contains the child processes of a program even after the program has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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
