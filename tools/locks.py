"""Stack locks that a dead Pulumi process left behind in a file backend."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tools.environment import PROJECT, ToolError


def clear_stale(backend: Path, stack: str) -> list[int]:
    """Remove locks of this machine's dead Pulumi processes; return their process ids.

    Raises ToolError when the lock is held by a live process, or by another machine whose processes cannot be asked.
    """
    cleared = []
    for lock in sorted((backend / ".pulumi" / "locks" / "organization" / PROJECT / stack).glob("*.json")):
        try:
            holder = json.loads(lock.read_text())
            pid, host, since = int(holder["pid"]), str(holder["hostname"]), holder["timestamp"]
        except (ValueError, KeyError, TypeError):
            raise ToolError(
                f"stack '{stack}': cannot read its lock {lock}. Fix: if no pulumi runs, remove it"
            ) from None
        if host != socket.gethostname():
            raise ToolError(
                f"stack '{stack}' is locked by process {pid} on {host} since {since}. "
                f"Fix: let it end, or if it is dead remove {lock}"
            )
        if is_pulumi(pid):
            raise ToolError(
                f"stack '{stack}' is in use: pulumi process {pid} since {since}. Fix: let it end, or stop it with "
                f"`kill -INT {pid}` and wait"
            )
        lock.unlink()
        lock.with_name(f"{lock.name}.attrs").unlink(missing_ok=True)
        cleared.append(pid)
    return cleared


def is_pulumi(pid: int) -> bool:
    """Whether a live process of this id is Pulumi: a dead one's id may have gone to another program."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except FileNotFoundError:
        return False
