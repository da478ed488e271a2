"""Commands that change jobs or wait for jobs: `submit --attached`, `cancel`, `resume`, `logs --follow` and `wait`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from trainyard.errors import JobError
from yard.run.logs import follow, read_job
from yard.run.node_faults import node_faults
from yard.run.queue import explain
from yard.run.schedulers.registry import scheduler_of
from yard.show import INTERRUPTED, payload, say, say_json, warn
from yard.stack.remote import Remote

_SIGNALLED = 128
"""An exit code above this value means that a signal ended the process."""


def follow_log(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool) -> int:
    """Print a rank's log until the job ends. Returns the command's exit code, which is 0 only if the job completed."""

    def show(line: str) -> None:
        if quiet:
            return
        if as_json:
            say_json({"line": line})
        else:
            payload(line + "\n")

    ended = follow(remote, job, rank, show, (lambda text: None) if quiet else warn)
    fault = node_faults(remote, [ended]).get(job)
    if as_json:
        say_json({**ended.as_json(), "node_fault": fault})
    else:
        warn(f"yard: job {job} {ended.state}: {explain(ended)}")
    if fault and not as_json:
        warn(f"yard: {fault}")
    elif not as_json and ended.state == "FAILED" and ended.exit_code > _SIGNALLED:
        warn("yard: a signal ended the rank; `yard ps` shows within some minutes if a node of the job had a fault")
    return ended.verdict


def submit_attached(remote: Remote, submit: Callable[[], int], as_json: bool) -> int:
    """Submit a job and follow its log. Returns the command's exit code.

    SIGINT, SIGTERM and SIGHUP cancel the job, and the function waits until its ranks have ended. A signal during the
    submission takes effect afterwards, because only a job with a number can be cancelled.
    """
    interrupts = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    early: list[int] = []
    for number in interrupts:
        signal.signal(number, lambda received, _: early.append(received))
    job = submit()
    try:
        for number in interrupts:
            signal.signal(number, signal.default_int_handler)
        if early:
            raise KeyboardInterrupt
        return follow_log(remote, job, 0, as_json, quiet=False)
    except KeyboardInterrupt:
        # A second signal must not stop the cancellation. The terminal also sends SIGINT to ssh, which inherits SIG_IGN.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        warn(f"yard: interrupted; cancelling job {job}")
        cancel_jobs(remote, [job], as_json)
        follow_log(remote, job, 0, as_json, quiet=True)
        return INTERRUPTED


def cancel_jobs(remote: Remote, jobs: Sequence[int], as_json: bool) -> None:
    """Cancel jobs, or all of the job user's active jobs if `jobs` is empty. Raises JobError for unknown jobs."""
    cluster = remote.stack.cluster
    scheduler = scheduler_of(cluster.scheduler)
    if jobs:
        chosen = [read_job(remote, job) for job in jobs]
    else:
        chosen = [job for job in scheduler.recent(remote, 1) if job.user == cluster.head.user and not job.ended]
    running = [job for job in chosen if not job.ended]
    if running:
        scheduler.cancel(remote, running)
    if as_json:
        say_json({"cancelled": [job.id for job in running], "already_ended": [job.id for job in chosen if job.ended]})
        return
    for job in chosen:
        say(f"job {job.id} ({job.name}): " + (f"had already ended, {job.state}" if job.ended else "cancelled"))
    if not chosen:
        say("no job is pending or running")


def resume_job(remote: Remote, job: int, as_json: bool) -> None:
    """Restart a finished job in its run folder. Raises JobError if the job is active or has completed."""
    found = read_job(remote, job)
    if not found.ended:
        raise JobError(f"job {job} is {found.state}; run `yard wait {job}`, and then resume it")
    if found.state == "COMPLETED":
        raise JobError(f"job {job} has completed; submit a new job")
    number = scheduler_of(remote.stack.cluster.scheduler).resume(remote, found)
    if as_json:
        say_json({"id": number, "resumes": job, "run_dir": found.run_dir})
    else:
        say(f"job {number} ({found.name}) continues in {found.run_dir}")
