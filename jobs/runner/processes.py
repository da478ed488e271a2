"""Ending processes by what they are, never by what they are called: their group, or the job's mark in what they got."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

RANK_MARK = "RUN_DIR="
"""Every process of a job was started with its run folder in this variable; no two jobs share one."""
NODE_MARK = "YARD_NODE="
"""Those that an agent started also carry the run folder and its node's name here: the agent's own, and no other's."""
AGENT_MARK = "YARD_AGENT="


def marked(marks: Sequence[str]) -> Iterator[int]:
    """Yield the processes that were started with one of the NAME=VALUE in their environment, but not this one."""
    wanted = {mark.encode() for mark in marks}
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        # Another user's, or gone meanwhile.
        with suppress(OSError):
            if pid != os.getpid() and wanted.intersection((place / "environ").read_bytes().split(b"\0")):
                yield pid


def sweep(marks: Sequence[str]) -> int:
    """Kill whatever carries a mark, until nothing does. Returns how many processes that were."""
    killed: set[int] = set()
    # A process that was just being started escapes the first look, not the third.
    for _ in range(3):
        found = list(marked(marks))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        if not found:
            break
    return len(killed)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process that leads a group, and to the group. One that is gone is no mistake."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
