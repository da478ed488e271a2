"""Reading and following the logs of a job."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from jobs.errors import JobError, RemoteError
from jobs.queue import Job, parse_one
from jobs.remote import Remote
from jobs.schedulers import scheduler_of

_FOLLOW = Path(__file__).parent / "follow.sh"
_TRAILER = "\x1e"
_AWAY_SECONDS = 300
_AGAIN_SECONDS = 2


def jobs_dir(remote: Remote) -> str:
    """Return the folder on the cluster that holds every job's run folder."""
    return f"{remote.stack.cluster.shared_path}/jobs"


def read_job(remote: Remote, job: int) -> Job:
    """Return where a job is. Raises JobError when there is none of this number."""
    found = scheduler_of(remote.stack.cluster).find(remote, job)
    if found is None:
        raise JobError(f"there is no job {job}; `yard ps --all` lists them")
    return found


def read_log(remote: Remote, job: int, rank: int) -> str:
    """Return a rank's log as it is now. Raises JobError when there is no such job; a log not begun is empty."""
    text = remote.run(_follow_line(remote, job, rank, 0), seconds=120)
    return text.partition(_TRAILER)[0]


def follow(remote: Remote, job: int, rank: int, show: Callable[[str], None]) -> Job:
    """Show the log line by line until the job has ended, and return the ended job. Raises JobError without one.

    A head that restarts is waited for: the job may well go on meanwhile. Raises RemoteError when it stays away.
    """
    read_job(remote, job)
    shown = 0
    while True:
        with remote.lines(_follow_line(remote, job, rank, shown)) as lines:
            for line in lines:
                if line.startswith(_TRAILER):
                    # An old job is known to the accounting alone, and one without a scheduler to its runner.
                    return parse_one(line[1:]) or read_job(remote, job)
                show(line.rstrip("\n"))
                shown += 1
        _wait_for(remote)


def _wait_for(remote: Remote) -> None:
    deadline = time.monotonic() + _AWAY_SECONDS
    while True:
        time.sleep(_AGAIN_SECONDS)
        try:
            remote.run("true")
        except RemoteError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _follow_line(remote: Remote, job: int, rank: int, skip: int) -> str:
    script = shlex.quote(_FOLLOW.read_text())
    return f"exec bash -c {script} follow {shlex.quote(jobs_dir(remote))} {job} {rank} {skip}"
