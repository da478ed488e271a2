"""Running the Pulumi CLI so that an interrupt ends it in order and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from tools.environment import ROOT

_END_SECONDS = 5.0
"""How long plugins of a pulumi that died get to end by themselves."""


def run_pulumi(arguments: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> int:
    """Run pulumi and return its exit code (128 + number when a signal ended it).

    It gets a session of its own: a terminal's Ctrl-C reaches only this process, which passes it on once. Pulumi then
    finishes what is under way and writes its state; a second Ctrl-C makes it stop at once.
    """
    started: list[subprocess.Popen[bytes]] = []
    too_early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        sys.stderr.write("\ninterrupted: pulumi finishes what is under way (once more to stop at once)\n")
        if started:
            started[0].send_signal(signal.SIGINT)
        else:
            too_early.append(number)

    # Set before pulumi starts: a signal that this process handles has its default effect in the child, even where
    # the shell had told this process to ignore it, as for a background job.
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        started.append(
            subprocess.Popen(
                ["pulumi", *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        )
        if too_early:
            started[0].send_signal(signal.SIGINT)
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in started:
            end_session(process.pid)
    return code if code >= 0 else 128 - code


def end_session(session: int) -> None:
    """End what is left of a session: the plugins of a pulumi that was killed. Virtual machines have left it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _END_SECONDS
        for pid in session_members(session):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while session_members(session) and time.monotonic() < deadline:
            time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """Return the live processes of a session."""
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
