"""Reads and follows a job's logs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import JobError, RemoteError
from yard.run.queue import Job, parse_one, waiting
from yard.run.schedulers.registry import scheduler_of
from yard.stack.remote import Remote

_FOLLOW = Path(__file__).parent / "follow.sh"
_TRAILER, _NOTE = "\x1e", "\x1f"
_RECONNECT_SECONDS = 300
"""Maximum time to wait for a head that does not respond."""
_RETRY_SECONDS = 2


def read_job(remote: Remote, job: int) -> Job:
    """Return a job. Raises JobError if it does not exist."""
    found = scheduler_of(remote.stack.cluster.scheduler).find(remote, job)
    if found is None:
        raise JobError(f"job {job} does not exist; `yard ps --all` lists all jobs")
    return found


def read_log(remote: Remote, job: int, rank: int) -> str:
    """Return the current log of a rank, or '' if it has no output. Raises JobError if the job does not exist."""
    # follow.sh ends immediately, because stdin is closed.
    text = remote.run(_follow_line(remote, job, rank, 0), seconds=120)
    return text.partition(_TRAILER)[0]


def follow(
    remote: Remote,
    job: int,
    rank: int,
    show: Callable[[str], None],
    note: Callable[[str], None] = lambda text: None,
) -> Job:
    """Call `show` for each line of a log until the job ends. Returns the job in its final state.

    Until the job's program prints something, `note` is called with sentences about the state of the job.

    If the connection to the head is lost, the function reconnects, because the job may still be running. Raises
    JobError if the job does not exist, and RemoteError if the head does not respond within five minutes.
    """
    read_job(remote, job)
    shown = 0
    while True:
        with remote.lines(_follow_line(remote, job, rank, shown)) as lines:
            for line in lines:
                if line.startswith(_TRAILER):
                    # The record is empty for old jobs, and it is JSON on clusters without a scheduler.
                    return parse_one(line[1:]) or read_job(remote, job)
                if line.startswith(_NOTE):
                    note(describe_silence(job, *line[1:].split()))
                    continue
                show(line.rstrip("\n"))
                shown += 1
        _wait_for_head(remote)


def describe_silence(job: int, state: str, reason: str, seconds: str) -> str:
    """Return a sentence about a job whose program has printed nothing yet."""
    if state == "RUNNING":
        silent = f" for {seconds} s" if int(seconds) else ""
        return f"yard: job {job} is running; its program has printed nothing{silent} (it is starting and importing)"
    return f"yard: job {job} is queued: {waiting(reason)}"


def _wait_for_head(remote: Remote) -> None:
    deadline = time.monotonic() + _RECONNECT_SECONDS
    while True:
        time.sleep(_RETRY_SECONDS)
        try:
            remote.run("true")
        except RemoteError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _follow_line(remote: Remote, job: int, rank: int, skip: int) -> str:
    script, jobs = shlex.quote(_FOLLOW.read_text()), shlex.quote(f"{remote.stack.cluster.shared_path}/jobs")
    return f"exec bash -c {script} follow {jobs} {job} {rank} {skip}"
