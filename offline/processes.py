"""Check whether another process is running."""

from __future__ import annotations

from pathlib import Path


def is_running(process: int) -> bool:
    """Return whether a process with this id is running. A zombie has ended and does not count.

    Sending signal 0 also succeeds for a zombie, which exists until its parent reads its exit status. A zombie exists
    for seconds if the machine's init process reaps it late. Source: proc_pid_stat(5), field 3 (state).
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The command name in field 2 may contain spaces and parentheses, so fields are counted from the last parenthesis.
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
