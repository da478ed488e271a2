"""Jobs that wait for other jobs."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.errors import JobError
from yard.run.logs import read_job
from yard.stack.remote import Remote


def unfinished(remote: Remote, jobs: Iterable[int]) -> tuple[int, ...]:
    """Return the jobs that have not ended. Raises JobError if a job does not exist or has failed."""
    waiting = []
    for number in dict.fromkeys(jobs):
        job = read_job(remote, number)
        if not job.ended:
            waiting.append(number)
        elif job.state != "COMPLETED":
            fix = f"run `yard resume {number}` and wait for the new job, or omit --after {number}"
            raise JobError(f"job {number} is {job.state}, so a job after it would never start. Fix: {fix}")
    return tuple(waiting)
