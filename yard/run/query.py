"""Reads jobs' state files and signals the jobs' runners. yard runs this file on the head, with Python 3.10 or newer.

Usage: `query.py JOBS_DIR COMMAND`, which prints JSON. The commands are `jobs DAYS`, `job NUMBER`, `cancel NUMBER...`
and `nodes`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

STARTING_SECONDS = 30
"""Maximum time between a job's submission and its runner's start."""
FIELDS = ("id", "name", "user", "group", "state", "reason", "nodes", "node_list", "restarts", "exit_code", "run_dir")


def is_alive(runner: dict[str, Any] | None, submitted: float) -> bool:
    """Return whether a job's runner is alive. The runner's start time is compared too, because PIDs are reused."""
    if runner is None:
        return time.time() - submitted < STARTING_SECONDS
    if Path("/proc/sys/kernel/random/boot_id").read_text().strip() != runner["boot"]:
        return False
    try:
        stat = Path(f"/proc/{runner['pid']}/stat").read_text()
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return bool(fields[19] == runner["ticks"] and fields[0] != "Z")


def is_active(state: dict[str, Any]) -> bool:
    return state["state"] in {"PENDING", "RUNNING"}


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return a job's state, or None if there is no state file. A job whose runner has died is recorded as LOST."""
    try:
        state: dict[str, Any] = json.loads((run_dir / "state.json").read_text())
    except (OSError, ValueError):
        return None
    if is_active(state) and not is_alive(state["runner"], state["submitted"]):
        state.update(state="LOST", exit_code=1, ended=time.time())
        # If the disk is full, the next call tries again.
        with suppress(OSError):
            fresh = run_dir / f".state.{os.getpid()}"
            fresh.write_text(json.dumps(state) + "\n")
            fresh.replace(run_dir / "state.json")
            with (run_dir / "job.log").open("a") as log:
                log.write("yard: the job's runner was killed or the head restarted; the ranks end automatically\n")
            with (run_dir / "events").open("a") as events:
                events.write(f"{int(time.time())} end 1\n")
    return state


def row(state: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for yard's class `Job`."""
    until = state["ended"] or time.time()
    elapsed = int(until - state["started"]) if state["started"] else 0
    return {**{name: state[name] for name in FIELDS}, "elapsed_s": elapsed}


def jobs(folder: Path, days: int) -> list[dict[str, Any]]:
    """Return the active jobs, and those that ended in the last `days` days, newest first."""
    since = time.time() - days * 86400
    numbers = sorted((int(path.name) for path in (folder / ".ids").glob("[0-9]*")), reverse=True)
    states = [read(folder / ".ids" / str(number)) for number in numbers]
    return [row(state) for state in states if state is not None and (not state["ended"] or state["ended"] > since)]


def cancel(run_dir: Path) -> None:
    """Tell an active job's runner to cancel the job. If the runner has not started yet, wait for it first."""
    while (state := read(run_dir)) is not None and is_active(state):
        if state["runner"]:
            with suppress(ProcessLookupError):  # the runner may just have ended
                os.kill(state["runner"]["pid"], signal.SIGINT)
            return
        time.sleep(0.1)


def nodes(folder: Path) -> list[str]:
    """Return the names of the nodes that run a job. For each node, the job's runner holds a lock on a file."""
    busy = []
    for path in (folder / ".nodes").glob("node-*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                busy.append(path.name.removeprefix("node-"))
    return busy


def run(folder: Path, command: Sequence[str]) -> Any:
    match command:
        case ["jobs", days]:
            return jobs(folder, int(days))
        case ["job", number]:
            state = read(folder / ".ids" / number)
            return [] if state is None else [row(state)]
        case ["cancel", *numbers]:
            for number in numbers:
                cancel(folder / ".ids" / number)
            return None
        case _:
            return nodes(folder)


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2:])))  # noqa: T201  (yard reads it)
