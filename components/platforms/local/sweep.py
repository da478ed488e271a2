"""Removes the processes and files of a run, even if its Pulumi state was lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from components.platforms.local.paths import socket_folder
from components.platforms.local.process import end, started_under


def sweep_run(run: Path) -> int:
    """Terminate the processes of a run and delete its sockets and folder. Returns the number of terminated
    processes."""
    pids = started_under(run)
    for pid in pids:
        end(pid)
    shutil.rmtree(socket_folder(run), ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    return len(pids)
