"""Lists jobs and nodes, prints and follows logs, and cancels and resumes jobs."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, RemoteError
from trainyard.faults import fault
from yard.job.spec import RUN_DIR
from yard.run import goodput
from yard.run.queue import Job, explain, parse_one, waiting
from yard.run.schedulers import scheduler_of
from yard.show import INTERRUPTED, answer, counted, duration, payload, say, say_json, table, warn
from yard.stack.remote import Remote

_TRAILER, _NOTE = "\x1e", "\x1f"
_RECONNECT_SECONDS = 300
"""Maximum time to wait for a head that does not respond."""

_BEFORE_SECONDS, _AFTER_SECONDS = 600, 180
"""A fault counts as the likely cause of a failure if Slurm noticed it at most this many seconds before or after the end
of the job. Slurm can take more than a minute to notice a fault."""
_SUSPECT = frozenset({"FAILED", "NODE_FAIL", "TIMEOUT"})
_SIGNALLED = 128
"""An exit code above this number means that a signal ended the process."""
_COLOURS = {
    **dict.fromkeys(("FAILED", "NODE_FAIL", "TIMEOUT", "LOST", "down", "down*"), "red"),
    **dict.fromkeys(("COMPLETED", "idle"), "green"),
    **dict.fromkeys(("RUNNING", "spare"), "cyan"),
}


def read_job(remote: Remote, job: int) -> Job:
    """Return a job. Raises JobError if it does not exist."""
    found = scheduler_of(remote.stack.cluster.scheduler).find(remote, job)
    if found is None:
        raise JobError(f"job {job} does not exist; `yard ps --all` lists all jobs")
    return found


def follow(
    remote: Remote,
    job: int,
    rank: int,
    show: Callable[[str], None],
    note: Callable[[str], None] = lambda text: None,
) -> Job:
    """Call `show` for each line of a rank's log until the job ends, and return the ended job.

    Until the job's program prints something, `note` is called with sentences about the job's state. If the connection
    to the head is lost, the function reconnects, because the job may still be running. Raises JobError if the job does
    not exist, and RemoteError if the head does not respond within five minutes.
    """
    read_job(remote, job)
    shown = 0
    while True:
        with remote.lines(_follow_line(remote, job, rank, shown)) as lines:
            for line in lines:
                if line.startswith(_TRAILER):
                    # The record is empty if the job is old, and is JSON if the cluster has no scheduler.
                    return parse_one(line[1:]) or read_job(remote, job)
                if line.startswith(_NOTE):
                    note(describe_silence(job, *line[1:].split()))
                    continue
                show(line.rstrip("\n"))
                shown += 1
        _wait_for_head(remote)


def describe_silence(job: int, state: str, reason: str, seconds: str) -> str:
    if state == "RUNNING":
        silent = f" for {seconds} s" if int(seconds) else ""
        return f"yard: job {job} is running; its program has printed nothing{silent} (it is starting and importing)"
    return f"yard: job {job} is queued: {waiting(reason)}"


def _wait_for_head(remote: Remote) -> None:
    deadline = time.monotonic() + _RECONNECT_SECONDS
    while True:
        time.sleep(2)
        try:
            remote.run("true")
        except RemoteError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _follow_line(remote: Remote, job: int, rank: int, skip: int) -> str:
    script = (Path(__file__).parent / "follow.sh").read_text()
    jobs = shlex.quote(f"{remote.stack.cluster.shared_path}/jobs")
    return f"exec bash -c {shlex.quote(script)} follow {jobs} {job} {rank} {skip}"


def node_faults(remote: Remote, jobs: Iterable[Job]) -> dict[int, str]:
    """Return a mapping from job number to a sentence for the jobs whose likely cause of failure is a node's fault."""
    cluster = remote.stack.cluster
    folder = f"{cluster.shared_path}/jobs/"
    # Only run folders in `folder` are read, because other users choose their jobs' working directories.
    failed = {job.id: job for job in jobs if job.state in _SUSPECT and job.run_dir.startswith(folder)}
    if not failed or cluster.scheduler != "slurm":
        return {}
    history = shlex.quote(f"{cluster.state_dir}/repair.json")
    events = "; ".join(
        f"echo {number} $(tail -n 1 {shlex.quote(job.run_dir)}/events 2>/dev/null)" for number, job in failed.items()
    )
    read = f"{{ cat {history} || echo '{{}}'; }} 2>/dev/null | tr -d '\\n'; echo"
    first, _, rest = remote.run(f"{read}; {events}").partition("\n")
    changes = json.loads(first).get("history", {})
    ends = {int(found[1]): float(found[2]) for found in re.finditer(r"(?m)^(\d+) ([\d.]+) end ", rest)}
    found = {number: next(_faults(failed[number], end, changes), "") for number, end in ends.items()}
    return {number: text for number, text in found.items() if text}


def _faults(job: Job, end: float, changes: Mapping[str, Any]) -> Iterator[str]:
    for node in expand(job.node_list):
        for change in changes.get(node, ()):
            is_near = end - _BEFORE_SECONDS <= change["time"] <= end + _AFTER_SECONDS
            if is_near and fault(change["reason"]) is not None:
                when = f"{datetime.fromtimestamp(change['time'], UTC):%H:%M:%S} UTC"
                yield f"node {node} had a fault at {when} ({change['reason']}), which is the likely cause"


def expand(node_list: str) -> Iterator[str]:
    """Yield the names of the nodes in a list in Slurm's notation, such as "gpu-[0-1,3]"."""
    for prefix, ranges in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", node_list):
        if not ranges:
            yield prefix
            continue
        for part in ranges.split(","):
            low, _, high = part.partition("-")
            for number in range(int(low), int(high or low) + 1):
                yield f"{prefix}{number:0{len(low)}}"


def follow_log(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool) -> int:
    """Print a rank's log until the job ends. Return the command's exit code, which is 0 only if the job completed."""

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
        return ended.verdict
    warn(f"yard: job {job} {ended.state}: {explain(ended)}")
    if fault:
        warn(f"yard: {fault}")
    elif ended.state == "FAILED" and ended.exit_code > _SIGNALLED:
        warn("yard: a signal ended the rank; `yard ps` shows within some minutes if a node of the job had a fault")
    return ended.verdict


def submit_attached(remote: Remote, submit: Callable[[], int], as_json: bool) -> int:
    """Submit a job, follow its log, and return the command's exit code.

    After SIGINT, SIGTERM or SIGHUP, the function cancels the job and waits until its ranks have ended. A signal during
    the submission takes effect afterwards, because only a job with a number can be cancelled.
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
    """Cancel jobs, or all of the job user's active jobs if `jobs` is empty. Raises JobError for an unknown job."""
    cluster = remote.stack.cluster
    scheduler = scheduler_of(cluster.scheduler)
    if jobs:
        chosen = [read_job(remote, job) for job in jobs]
    else:
        chosen = [job for job in scheduler.recent(remote, 1) if job.user == cluster.head.user and not job.ended]
    running = [job for job in chosen if not job.ended]
    if running:
        scheduler.cancel(remote, running)
    states = [f"had already ended, {job.state}" if job.ended else "cancelled" for job in chosen]
    lines = [f"job {job.id} ({job.name}): {state}" for job, state in zip(chosen, states, strict=True)]
    facts = {"cancelled": [job.id for job in running], "already_ended": [job.id for job in chosen if job.ended]}
    answer("\n".join(lines) or "no job is pending or running", facts, as_json)


def resume_job(remote: Remote, job: int, as_json: bool) -> None:
    """Restart a failed or cancelled job in its run folder. Raises JobError if the job is active or has completed."""
    found = read_job(remote, job)
    if not found.ended:
        raise JobError(f"job {job} is {found.state}; run `yard wait {job}`, and then resume it")
    if found.state == "COMPLETED":
        raise JobError(f"job {job} has completed; submit a new job")
    number = scheduler_of(remote.stack.cluster.scheduler).resume(remote, found)
    facts = {"id": number, "resumes": job, "run_dir": found.run_dir}
    answer(f"job {number} ({found.name}) continues in {found.run_dir}", facts, as_json)


def list_jobs(remote: Remote, days: int, as_json: bool, *, long: bool) -> None:
    """Print the jobs from the last `days` days. If `long` is set, include goodput and lost time."""
    found = scheduler_of(remote.stack.cluster.scheduler).recent(remote, days)
    goodputs = _goodputs(remote, found) if long else {}
    faults = node_faults(remote, found)
    if as_json:
        rows = [job.as_json() | {"node_fault": faults.get(job.id)} for job in found]
        say_json([row | {"goodput": goodputs.get(str(row["id"]))} for row in rows] if long else rows)
        return
    if not found:
        say("no jobs; `yard submit hello` starts one")
        return
    lines = []
    for job in found:
        nodes = job.node_list or counted(job.nodes, "node")
        restarts = "" if job.restarts is None else str(job.restarts)
        used = goodputs.get(str(job.id))
        cells = (f"{used['goodput']:.0%}", duration(round(used["lost_s"]))) if used else ("", "")
        why = "; ".join(filter(None, (explain(job), faults.get(job.id))))
        first = (str(job.id), job.name, job.state, nodes, duration(job.elapsed_s), restarts)
        lines.append((*first, *(cells if long else ()), why))
    more = ("GOODPUT", "LOST") if long else ()
    table(("JOB", "NAME", "STATE", "NODES", "ELAPSED", "RESTARTS", *more, "REASON"), lines, _COLOURS)


def _goodputs(remote: Remote, jobs: Iterable[Job]) -> dict[str, Mapping[str, float] | None]:
    """Return a mapping from job number to goodput. The goodput is None if the job has recorded no steps."""
    folder = f"{remote.stack.cluster.shared_path}/jobs/"
    # Only run folders in `folder` are read, because other users choose their jobs' working directories.
    words = [f"{job.id}={job.run_dir}" for job in jobs if job.run_dir.startswith(folder)]
    program = Path(goodput.__file__).read_bytes()
    found: dict[str, Mapping[str, float] | None] = json.loads(
        remote.run(shlex.join(["python3", "-", *words]), stdin=program)
    )
    return found


def show_log(remote: Remote, job: int, rank: int, as_json: bool) -> None:
    """Print a rank's current log, or the job's state if the log is empty."""
    # follow.sh ends immediately, because stdin is closed.
    text = remote.run(_follow_line(remote, job, rank, 0), seconds=120).partition(_TRAILER)[0]
    found = read_job(remote, job)
    if as_json:
        say_json({**found.as_json(), "rank": rank, "lines": text.splitlines()})
        return
    if fault := node_faults(remote, [found]).get(job):
        warn(f"yard: job {job} {found.state}: {explain(found)}; {fault}")
    if text:
        payload(text)
        return
    state = f"job {job} is {found.state}: {explain(found)}"
    if RUN_DIR.search(found.run_dir):
        warn(f"yard: rank {rank} has no output; {state}")
    else:
        log = f"{found.run_dir}/slurm-{job}.out"  # the default of sbatch's --output option
        warn(f"yard: job {job} was not submitted with `yard submit`; its log is probably {log}; {state}")


def list_nodes(remote: Remote, as_json: bool, *, history: bool = False) -> None:
    """Print all hosts and their states or, if `history` is set, the times when workers left service and returned."""
    cluster = remote.stack.cluster
    if history:
        _list_history(remote, as_json)
        return
    states: dict[str, tuple[str, str]] = {}
    missing = "Slurm does not list this node; run `pulumi up`"
    try:
        states = scheduler_of(cluster.scheduler).nodes(remote)
    except RemoteError as error:
        if cluster.unready is None:
            raise
        warn(f"yard: the states of the nodes are unknown: {error}")
        missing = ""
    if text := cluster.warning:
        warn(f"yard: {text}")
    head = {"name": cluster.head.name, "group": "", "state": "head", "reason": ""}
    found: list[dict[str, Any]] = [{**head, "private_ip": cluster.head.private_ip, "gpus": 0, "gpu_type": None}]
    for node in cluster.nodes:
        state, reason = states.get(node.name, ("unknown", missing))
        # In a group with spares, Slurm reserves each node that runs no job.
        state = "spare" if state == "reserved" and node.group in cluster.spares else state
        facts = {"name": node.name, "group": node.group, "state": state, "reason": reason}
        found.append({**facts, "private_ip": node.private_ip, "gpus": node.gpus, "gpu_type": node.gpu_type})
    if as_json:
        say_json(found)
        return
    rows = [
        (
            *map(node.get, ("name", "group", "state")),
            f"{node['gpus']} {node['gpu_type'] or ''}".strip(),
            node["private_ip"],
            node["reason"],
        )
        for node in found
    ]
    table(("NODE", "GROUP", "STATE", "GPUS", "PRIVATE IP", "REASON"), rows, _COLOURS)


def _list_history(remote: Remote, as_json: bool) -> None:
    path = shlex.quote(f"{remote.stack.cluster.state_dir}/repair.json")
    found = json.loads(remote.run(f"cat {path} 2>/dev/null || echo '{{}}'")).get("history", {})
    changes = sorted((change["time"], node, change["reason"]) for node, rows in found.items() for change in rows)
    if as_json:
        say_json([{"time": when, "node": node, "reason": reason} for when, node, reason in changes])
        return
    if not changes:
        say("no worker has left service since the repair service started")
        return
    rows = [(f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S}", *rest) for when, *rest in changes]
    table(("TIME (UTC)", "NODE", "CHANGE"), [(when, node, reason or "in service") for when, node, reason in rows])
