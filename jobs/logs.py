"""Reading and following the logs of a job."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from jobs.errors import JobError
from jobs.queue import Job, parse_one, query_line
from jobs.remote import Remote

_FOLLOW = Path(__file__).parent / "follow.sh"
_TRAILER = "\x1e"
_MISSING = 3


def jobs_dir(remote: Remote) -> str:
    """Return the folder on the cluster that holds every job's run folder."""
    return f"{remote.stack.cluster.shared_path}/jobs"


def read_job(remote: Remote, job: int) -> Job:
    """Return what Slurm says of one job. Raises JobError when it knows none of this number."""
    found = parse_one(remote.run(query_line(job)))
    if found is None:
        raise JobError(f"Slurm knows no job {job}; `yard ps` lists them")
    return found


def read_log(remote: Remote, job: int, rank: int) -> str:
    """Return a rank's log as it is now. Raises JobError when there is no such job; a log not begun is empty."""
    text = remote.run(_follow_line(remote, job, rank), seconds=120)
    return text.partition(_TRAILER)[0]


def follow(remote: Remote, job: int, rank: int, show: Callable[[str], None]) -> Job:
    """Show the log line by line until the job has ended, and return the ended job. Raises JobError without one."""
    read_job(remote, job)
    trailer = ""
    with remote.lines(_follow_line(remote, job, rank)) as lines:
        for line in lines:
            if line.startswith(_TRAILER):
                trailer = line[1:]
                break
            show(line.rstrip("\n"))
    # An old job is known to the accounting alone.
    return parse_one(trailer) or read_job(remote, job)


def _follow_line(remote: Remote, job: int, rank: int) -> str:
    script = shlex.quote(_FOLLOW.read_text())
    return f"exec bash -c {script} follow {shlex.quote(jobs_dir(remote))} {job} {rank}"
