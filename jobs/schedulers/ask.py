"""Runs on the head, sent over ssh: reads what the runners of jobs wrote down, and tells them to end. Python 3.10.

ask.py JOBS_DIR jobs DAYS | job NUMBER | cancel NUMBER... | nodes     Prints JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

DAY = 86400
STARTING_SECONDS = 30
"""How long a job may be without a runner after it came in."""
FACTS = ("id", "name", "user", "group", "state", "reason", "nodes", "node_list", "restarts", "exit_code", "run_dir")


def is_alive(runner: dict[str, Any] | None, submitted: float) -> bool:
    """Tell whether this very runner still runs: its number alone may by now be somebody else's."""
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


def read(run_dir: Path) -> dict[str, Any] | None:
    """Return a job's state, brought up to date when its runner is gone; None: it has none yet."""
    try:
        state: dict[str, Any] = json.loads((run_dir / "state.json").read_text())
    except (OSError, ValueError):
        return None
    if state["state"] in {"PENDING", "RUNNING"} and not is_alive(state["runner"], state["submitted"]):
        state.update(state="LOST", exit_code=1, ended=time.time())
        write_down(run_dir, state)
    return state


def write_down(run_dir: Path, state: dict[str, Any]) -> None:
    """Keep it that a job is lost, for whoever asks next. On a full disk the next one finds out anew."""
    with suppress(OSError):
        fresh = run_dir / f".state.{os.getpid()}"
        fresh.write_text(json.dumps(state) + "\n")
        fresh.replace(run_dir / "state.json")
        with (run_dir / "job.log").open("a") as log:
            log.write("yard: the runner of this job is gone, as when the head restarts; its ranks end by themselves\n")
        with (run_dir / "events").open("a") as events:
            events.write(f"{time.time():.0f} end 1\n")


def row(state: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that yard shows."""
    until = state["ended"] or time.time()
    elapsed = int(until - state["started"]) if state["started"] else 0
    return {**{name: state[name] for name in FACTS}, "elapsed_s": elapsed}


def jobs(folder: Path, days: int) -> list[dict[str, Any]]:
    """Return the jobs that have not ended, and those that ended in the last days; newest first."""
    since = time.time() - days * DAY
    numbers = sorted((int(path.name) for path in (folder / ".ids").glob("[0-9]*")), reverse=True)
    states = [read(folder / ".ids" / str(number)) for number in numbers]
    return [row(state) for state in states if state is not None and (not state["ended"] or state["ended"] > since)]


def cancel(folder: Path, numbers: list[str]) -> list[int]:
    """Ask the runners of jobs to end them."""
    told = []
    for number in numbers:
        state = read(folder / ".ids" / number)
        if state is not None and state["runner"] and state["state"] in {"PENDING", "RUNNING"}:
            os.kill(state["runner"]["pid"], signal.SIGINT)
            told.append(int(number))
    return told


def nodes(folder: Path) -> list[str]:
    """Return the nodes that a job holds."""
    held = []
    for path in (folder / ".nodes").glob("node-*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name.removeprefix("node-"))
    return held


def answer(folder: Path, what: str, *words: str) -> Any:
    """Return what was asked for."""
    if what == "jobs":
        return jobs(folder, int(words[0]))
    if what == "job":
        state = read(folder / ".ids" / words[0])
        return [] if state is None else [row(state)]
    if what == "cancel":
        return cancel(folder, list(words))
    return nodes(folder)


if __name__ == "__main__":
    print(json.dumps(answer(Path(sys.argv[1]), *sys.argv[2:])))  # noqa: T201  (the answer to yard)
