"""Removes stack locks left in a file backend by dead pulumi processes."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from trainyard.checkout import PROJECT
from trainyard.errors import StackError


class StackInUse(StackError):
    """A live pulumi process on this machine holds the stack's lock."""


def clear_stale(backend: Path, stack: str) -> list[int]:
    """Remove each stack lock whose process ran on this machine and has ended. Returns the ids of these processes.

    Raises StackInUse if a lock belongs to a live process, and StackError if a lock is unreadable or from another
    machine.
    """
    cleared = []
    for lock in sorted((backend / ".pulumi" / "locks" / "organization" / PROJECT / stack).glob("*.json")):
        try:
            holder = json.loads(lock.read_text())
            pid, host, since = int(holder["pid"]), str(holder["hostname"]), holder["timestamp"]
        except (ValueError, KeyError, TypeError):
            raise StackError(
                f"stack '{stack}': the lock file {lock} cannot be read. Fix: if pulumi is not running, remove the file"
            ) from None
        if host != socket.gethostname():
            raise StackError(
                f"stack '{stack}' is locked by process {pid} on {host} since {since}. "
                f"Fix: wait until the process has ended. If it was killed, remove {lock}"
            )
        if _is_pulumi(pid):
            raise StackInUse(
                f"stack '{stack}' is in use: pulumi process {pid} since {since}. Fix: wait until it has ended, or stop "
                f"it with `kill -INT {pid}` and wait"
            )
        lock.unlink()
        lock.with_name(f"{lock.name}.attrs").unlink(missing_ok=True)
        cleared.append(pid)
    return cleared


def _is_pulumi(pid: int) -> bool:
    """Return whether the process is a running pulumi process. The id of an ended process can be reused by a new
    process.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except FileNotFoundError:
        return False
