"""Kills processes by process group or by an environment variable of the job, and never by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

RANK_MARK = "RUN_DIR="
"""Environment variable that is set in all processes of a job. Its value is the run folder."""
NODE_MARK = "YARD_NODE="
"""Environment variable that is set in all processes started by an agent: the run folder and the node's name."""
AGENT_MARK = "YARD_AGENT="
"""Environment variable that is set in agents. Its value is the run folder."""


def marked(marks: Sequence[str]) -> Iterator[int]:
    """Yield the ids of other processes that started with one of `marks` (NAME=VALUE) in their environment."""
    wanted = {mark.encode() for mark in marks}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        # Reading fails if the process belongs to another user or has ended.
        with suppress(OSError):
            if pid != os.getpid() and wanted.intersection((folder / "environ").read_bytes().split(b"\0")):
                yield pid


def sweep(marks: Sequence[str]) -> int:
    """Kill the processes that `marked` finds, and return their number."""
    killed: set[int] = set()
    # A later pass finds processes that started during an earlier pass.
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
    """Send a signal to a process group. A group that no longer exists is ignored."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
