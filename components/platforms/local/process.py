"""Processes that outlive us, known by their pidfile. Never by name: another's process must not be taken for ours."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_PIDFILE_OPTIONS = {b"-pidfile", b"-p"}
"""What qemu and vde_switch call it."""


def find(pidfile: Path) -> int | None:
    """Return the process that was started with this pidfile, None when it is gone.

    Its own arguments name the file, so a pid that was given to another process since does not count.
    """
    try:
        pid = int(pidfile.read_text())
    except (OSError, ValueError):
        return None
    return pid if _pidfile_of(pid) == pidfile else None


def started_under(folder: Path) -> list[int]:
    """Return the processes whose pidfile lies, or lay, under `folder`: also those whose files were removed by hand."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if (pidfile := _pidfile_of(pid)) and pidfile.is_relative_to(folder)]


def wait_gone(pid: int, seconds: float) -> bool:
    """Wait until the process is gone; False when it still runs after `seconds`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def weigh(pid: int, niceness: int) -> None:
    """Give a session's processes this niceness towards other sessions.

    Where the kernel groups processes by session (sched(7), autogroup), their own niceness counts within one only.
    """
    with suppress(OSError):  # no such grouping here, or the process has ended
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def end(pid: int, seconds: float = 3.0) -> None:
    """End a process that `find` or `started_under` gave: asks, kills after `seconds`. One already gone is fine."""
    pidfile = _pidfile_of(pid)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # From here on the handle means one process; it is ours only if the number was not given anew before.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pidfile is None or _pidfile_of(pid) != pidfile:
                return
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], seconds)[0]:
                return
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _pidfile_of(pid: int) -> Path | None:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    for option, value in pairwise(arguments):
        if option in _PIDFILE_OPTIONS and value.startswith(b"/"):
            return Path(os.fsdecode(value))
    return None
