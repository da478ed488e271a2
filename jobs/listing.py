"""The commands that read and show: jobs, logs, nodes; and cancel, which shows what it did."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from jobs.errors import JobError
from jobs.logs import follow, read_job, read_log
from jobs.nodes import read_nodes
from jobs.queue import explain
from jobs.remote import Remote
from jobs.schedulers import scheduler_of
from jobs.show import duration, say, say_json, table

_INTERRUPTED = 130
"""As a shell has it for a program that SIGINT ended."""
_COLOURS = {
    "COMPLETED": "green",
    "RUNNING": "cyan",
    "FAILED": "red",
    "NODE_FAIL": "red",
    "TIMEOUT": "red",
    "LOST": "red",
    "idle": "green",
    "down": "red",
    "down*": "red",
}


def list_jobs(remote: Remote, days: int, as_json: bool) -> None:
    """Print the jobs of the last `days`."""
    found = scheduler_of(remote.stack.cluster).recent(remote, days)
    if as_json:
        say_json([job.as_json() for job in found])
        return
    if not found:
        say("no jobs; `yard submit hello` starts one")
        return
    rows = [
        (
            str(job.id),
            job.name,
            job.state,
            job.node_list or _nodes(job.nodes),
            duration(job.elapsed_s),
            "" if job.restarts is None else str(job.restarts),
            explain(job),
        )
        for job in found
    ]
    table(("JOB", "NAME", "STATE", "NODES", "ELAPSED", "RESTARTS", "WHY"), rows, _COLOURS)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def show_log(remote: Remote, job: int, rank: int, as_json: bool) -> None:
    """Print a rank's log as it is now; for a job that has written nothing, its state."""
    text = read_log(remote, job, rank)
    if as_json:
        say_json({**read_job(remote, job).as_json(), "rank": rank, "lines": text.splitlines()})
    elif text:
        say(text)
    else:
        found = read_job(remote, job)
        state = f"the job is {found.state}: {explain(found)}"
        sys.stderr.write(f"yard: rank {rank} of job {job} has written nothing; {state}\n")


def follow_log(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool) -> int:
    """Show a log until the job has ended. Returns the exit code that stands for the job's own end."""

    def show(line: str) -> None:
        if quiet:
            return
        if as_json:
            say_json({"line": line})
        else:
            say(line + "\n")

    ended = follow(remote, job, rank, show)
    if as_json:
        say_json(ended.as_json())
    else:
        sys.stderr.write(f"yard: job {job} {ended.state}: {explain(ended)}\n")
    return ended.verdict


def submit_attached(remote: Remote, submit: Callable[[], int], as_json: bool) -> int:
    """Submit a job and show its log as long as nobody interrupts; then cancel it and wait until its ranks have ended.

    Returns the exit code that stands for the job's own end. SIGTERM and a closed terminal interrupt, too; while the
    job is on its way they wait, since nobody could cancel what has no number yet.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    early: list[int] = []
    for number in numbers:
        signal.signal(number, lambda got, _: early.append(got))
    job = submit()
    try:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
        if early:
            raise KeyboardInterrupt
        return follow_log(remote, job, 0, as_json, quiet=False)
    except KeyboardInterrupt:
        # A second Ctrl-C, which the terminal gives to ssh as well, must not leave the job behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in numbers[1:]:
            signal.signal(number, lambda *_: None)
        sys.stderr.write(f"yard: interrupted; job {job} is cancelled\n")
        cancel_jobs(remote, [job], as_json)
        follow_log(remote, job, 0, as_json, quiet=True)
        return _INTERRUPTED


def cancel_jobs(remote: Remote, jobs: Sequence[int], as_json: bool) -> None:
    """Cancel the jobs, or with none named every job of the job user that has not ended. Raises JobError."""
    scheduler = scheduler_of(remote.stack.cluster)
    if jobs:
        chosen = [read_job(remote, job) for job in jobs]
    else:
        user = remote.stack.cluster.head.user
        chosen = [job for job in scheduler.recent(remote, 1) if job.user == user and not job.ended]
    running = [job for job in chosen if not job.ended]
    if running:
        scheduler.cancel(remote, running)
    if as_json:
        say_json({"cancelled": [job.id for job in running], "already_ended": [job.id for job in chosen if job.ended]})
        return
    for job in chosen:
        say(f"job {job.id} ({job.name}): " + (f"had ended before, {job.state}" if job.ended else "cancelled"))
    if not chosen:
        say("no job is waiting or running")


def resume_job(remote: Remote, job: int, as_json: bool) -> None:
    """Start an ended job again in its folder. Raises JobError for one that has not ended, or needs nothing more."""
    found = read_job(remote, job)
    if not found.ended:
        raise JobError(f"job {job} is {found.state}; it goes on by itself")
    if found.state == "COMPLETED":
        raise JobError(f"job {job} has completed; submit a new one")
    number = scheduler_of(remote.stack.cluster).resume(remote, found)
    if as_json:
        say_json({"id": number, "resumes": job, "run_dir": found.run_dir})
    else:
        say(f"job {number} ({found.name}) goes on in {found.run_dir}")


def list_nodes(remote: Remote, as_json: bool) -> None:
    """Print the hosts and their states."""
    found = read_nodes(remote)
    if as_json:
        say_json([node.as_json() for node in found])
        return
    rows = [
        (node.name, node.group, node.state, f"{node.gpus} {node.gpu_type or ''}".strip(), node.private_ip, node.reason)
        for node in found
    ]
    table(("NODE", "GROUP", "STATE", "GPUS", "PRIVATE IP", "REASON"), rows, _COLOURS)
