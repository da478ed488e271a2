"""Programs that the local platform runs. Background processes are identified by their pidfiles, because other users can
have processes with the same name."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from components.platforms.local.paths import socket_folder
from trainyard.errors import PlatformError

_PIDFILE_OPTIONS = {b"-pidfile", b"-p"}
"""The options that set the pidfiles of QEMU and vde_switch."""


def run_program(subject: str, fix: str, *command: str) -> str:
    """Run a command and return its output. Raises PlatformError if the program is missing or fails.

    The error's message begins with `subject`, and `fix` says how to install the program.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PlatformError(f"{subject}: {command[0]} is missing. Fix: {fix}") from error
    if done.returncode:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise PlatformError(f"{subject}: {command[0]} failed: {reason}")
    return done.stdout


def find(pidfile: Path) -> int | None:
    """Return the id of the process that was started with this pidfile, or None if it has ended.

    The process's arguments must contain the pidfile's path, because process ids are reused.
    """
    try:
        pid = int(pidfile.read_text())
    except (OSError, ValueError):
        return None
    return pid if _pidfile_of(pid) == pidfile else None


def started_under(folder: Path) -> list[int]:
    """Return the ids of the processes whose pidfiles are under `folder`, even if the pidfiles have been deleted."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if (pidfile := _pidfile_of(pid)) and pidfile.is_relative_to(folder)]


def port_in_use(port: int) -> bool:
    """Return whether `port` on 127.0.0.1 is not available to another program."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def wait_gone(pid: int, seconds: float) -> bool:
    """Wait until the process ends. Returns False if the process is still running after `seconds`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def set_niceness(pid: int, niceness: int) -> None:
    """Set the niceness of a process's session.

    With autogroups (sched(7)), a process's niceness matters only among the processes in its session.
    """
    with suppress(OSError):  # autogroups are disabled, or the process has ended
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def end(pid: int, seconds: float = 3.0) -> None:
    """Terminate a process that has a pidfile, and kill it if it is still running after `seconds`."""
    pidfile = _pidfile_of(pid)
    if pidfile is None:
        return
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                # The process id may have been reused before `pidfd_open`.
                if _pidfile_of(pid) != pidfile:
                    return
                signal.pidfd_send_signal(handle, number)
                if select.select([handle], [], [], seconds)[0]:
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


def sweep_run(run: Path) -> int:
    """Terminate a run's processes, delete its sockets and folder, and return the number of terminated processes."""
    pids = started_under(run)
    for pid in pids:
        end(pid)
    shutil.rmtree(socket_folder(run), ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    return len(pids)
