"""Ends machines and switches without asking any state: what is left of a run whose state was lost or broken.

`python -m components.platforms.local.sweep` does it for every run folder of this checkout.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from components.platforms.local.paths import runs_folder, socket_folder
from components.platforms.local.process import end, started_under


def sweep_run(run: Path) -> int:
    """Leave nothing of a run: processes, sockets, folder. Return how many processes were ended."""
    pids = started_under(run)
    for pid in pids:
        end(pid)
    shutil.rmtree(socket_folder(run), ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
    return len(pids)


def sweep_all() -> int:
    """Sweep every run of this checkout, also those whose folder was removed by hand. Return the processes ended."""
    runs = runs_folder()
    ended = sum(sweep_run(run) for run in (runs.iterdir() if runs.is_dir() else ()))
    orphans = started_under(runs)
    for pid in orphans:
        end(pid)
    return ended + len(orphans)


if __name__ == "__main__":
    sys.stdout.write(f"local platform: {sweep_all()} leftover processes ended\n")
