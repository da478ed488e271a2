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
from trainyard.faults import HISTORY, Change, fault, flags, is_in_service
from trainyard.outputs import Cluster
from yard.job.spec import RUN_DIR
from yard.run import goodput
from yard.run.fair_use import held, is_limit, refusal
from yard.run.queue import Job, explain, explain_node, parse_one, power_state, waiting, waits_for_nodes
from yard.run.schedulers import scheduler_of
from yard.show import INTERRUPTED, answer, counted, duration, payload, say, say_json, table, warn
from yard.stack.remote import Remote, stopped_machines

_TRAILER, _NOTE = "\x1e", "\x1f"
_MAX_RANGE = 65_536
"""The most nodes in one range of a node list. Slurm has the same limit (MAX_SLURM_NODES in slurm/slurm.h)."""
_RECONNECT_SECONDS = 300
"""Maximum time to wait for a head that does not respond."""

_BEFORE_SECONDS, _AFTER_SECONDS = 600, 180
"""A fault counts as the likely cause of a failure if Slurm noticed it at most this many seconds before or after the end
of the job. Slurm can take more than a minute to notice a fault."""
_END_SECONDS = 120
"""How long `yard resume` waits for a job that is ending."""
_NOTICE_SECONDS = 30
"""How long `yard` waits for a fault after a signal has ended a job, because health checks need time to notice it."""
_SUSPECT = frozenset({"FAILED", "NODE_FAIL", "TIMEOUT"})
_EVENT = re.compile(r"(?m)^(\d+) (start|end|fault)(?: (\S+) (\d+) (.+))?")
"""A line in a job's file `events`. The last groups are the node, time and reason of a fault."""
_LAST_DAYS = 30
_SIGNALLED = 128
"""An exit code above this number means that a signal ended the process."""
COLOURS = {
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


def find_job(remote: Remote, job: str) -> Job:
    """Return the job with this number, or the user's newest job for `last`. Raises JobError if there is none."""
    if job != "last":
        return read_job(remote, int(job))
    for listed in scheduler_of(remote.stack.cluster.scheduler).recent(remote, _LAST_DAYS):
        if not _is_own(remote, listed):
            continue
        # Only the description of a single job contains a confirmed owner.
        found = read_job(remote, listed.id) if remote.stack.cluster.users else listed
        if _is_own(remote, found):
            return found
    raise JobError(f"no job was submitted in the last {_LAST_DAYS} days; `yard ps --all` lists the jobs")


def _is_own(remote: Remote, job: Job) -> bool:
    return job.user == remote.stack.user and job.run_dir.startswith(f"{remote.stack.jobs_path}/")


def acting_for_owner(remote: Remote, job: Job, *, reads: bool) -> Remote:
    """Return a connection that can read or, unless `reads` is set, change another user's job. Raises JobError.

    An admin acts as the job's owner. Other users can only read jobs that are readable for one of their groups.
    """
    stack = remote.stack
    if job.user == stack.user or not stack.cluster.users:
        return remote
    if stack.is_admin:
        return remote.acting_for(job.user)
    if reads and remote.run(f"test -r {shlex.quote(job.run_dir)} && echo yes || true").strip():
        return remote
    names = ", ".join(name for name, role in stack.cluster.users.items() if role == "admin")
    admins = names or "none yet; an operator sets `admin: true` for a user in the stack file, and runs `pulumi up`"
    action = "is not readable for you" if reads else "can only be changed by this user and by admins"
    option = f"; `readable_by` in the job file of {job.user} permits it" if reads else ""
    raise JobError(
        f"job {job.id} belongs to {job.user} and {action}. Fix: ask {job.user} or an admin ({admins}){option}"
    )


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
    found = read_job(remote, job)
    remote = acting_for_owner(remote, found, reads=True)
    shown = 0
    while True:
        with remote.lines(_follow_line(remote, found.user, job, rank, shown)) as lines:
            for line in lines:
                if line.startswith(_TRAILER):
                    # The record is empty if the job is old, and is JSON if the cluster has no scheduler.
                    return parse_one(line[1:], job) or read_job(remote, job)
                if line.startswith(_NOTE):
                    state, reason, seconds = line[1:].split()
                    why = _waits(remote, [read_job(remote, job)]).get(job, "") if state == "PENDING" else ""
                    note(describe_silence(job, state, reason, seconds, why))
                    continue
                show(line.rstrip("\n"))
                shown += 1
        _wait_for_head(remote)


def describe_silence(job: int, state: str, reason: str, seconds: str, why: str = "") -> str:
    if state == "RUNNING":
        silent = f" for {seconds} s" if int(seconds) else ""
        return f"yard: job {job} is running; its program has printed nothing{silent} (it is starting and importing)"
    if state == "CONFIGURING":
        return f"yard: job {job} has its nodes, and waits until their machines have started"
    return f"yard: job {job} is queued: {why or waiting(reason)}"


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


def _follow_line(remote: Remote, owner: str, job: int, rank: int, skip: int) -> str:
    script = (Path(__file__).parent / "follow.sh").read_text()
    jobs = shlex.quote(remote.stack.cluster.jobs_of(owner))
    return f"exec bash -c {shlex.quote(script)} follow {jobs} {job} {rank} {skip}"


def node_faults(remote: Remote, jobs: Iterable[Job]) -> dict[int, str]:
    """Return a mapping from job number to a sentence for the jobs whose likely cause of failure is a node's fault.

    A failed job records its nodes' faults in its file `events`. With Slurm, the head's history and Slurm's current
    state also contain faults that were noticed later.
    """
    cluster = remote.stack.cluster
    folder = f"{remote.stack.jobs_path}/"
    # Only run folders in `folder` are read, because other users choose their jobs' working directories.
    failed = {job.id: job for job in jobs if job.state in _SUSPECT and job.run_dir.startswith(folder)}
    if not failed:
        return {}
    history = shlex.quote(f"{cluster.state_dir}/{HISTORY}")
    reads = [f"{{ cat {history} || echo '{{}}'; }} 2>/dev/null | tr -d '\\n'", "echo; date +%s"]
    if cluster.scheduler == "slurm":
        # SLURM_TIME_FORMAT also applies to sinfo (slurm_make_time_str in common/parse_time.c of Slurm 24.11.5).
        reads.append("SLURM_TIME_FORMAT=%s sinfo -a -h -N -o '%N|%T|%H|%E' 2>/dev/null")
    reads += [f"echo '# {job.id}'; tail -n 99 {shlex.quote(job.run_dir)}/events 2>/dev/null" for job in failed.values()]
    head, *events = re.split(r"(?m)^# (?=\d+$)", remote.run("; ".join([*reads, "true"])))
    first, now, *rows = head.splitlines()
    changes = _changes(json.loads(first).get("history", {}), rows, float(now))
    found = {}
    for text in events:
        number, _, lines = text.partition("\n")
        if sentence := _blame(failed[int(number)], lines, changes):
            found[int(number)] = sentence
    return found


def _changes(history: Any, rows: Iterable[str], now: float) -> dict[str, list[Change]]:
    """Return each node's changes. `rows` are from sinfo, and contain changes that the head has not recorded yet."""
    found = {name: [Change(**row) for row in changes] for name, changes in history.items()}
    for name, state, when, reason in (row.split("|", 3) for row in rows if row.count("|") >= 3):  # noqa: PLR2004
        changes = found.setdefault(name, [])
        if is_in_service(state) or (changes and changes[-1].reason):
            continue
        # Slurm sets the reason some time after the state.
        silent = reason == "none" and "NOT_RESPONDING" in flags(state)
        changes.append(Change(float(when) if when.isdigit() else now, "not responding" if silent else reason))
    return found


def _blame(job: Job, events: str, changes: Mapping[str, Sequence[Change]]) -> str | None:
    """Return a sentence about the last fault before the end of the job or else the first one after it, or None.

    A fault that was noticed before the job's last start is not its cause, because the node was in service again.
    """
    end = began = 0.0
    own: list[tuple[str, Change]] = []
    for when, event, node, since, reason in _EVENT.findall(events):
        if event == "start":
            end, began, own = 0.0, float(when), []
        elif event == "end":
            end = float(when)
        elif reason:
            own.append((node, Change(float(since), reason)))
    # Slurm kills the script of a job that has lost a node, so that there is no event `end`.
    end = end or (began + job.elapsed_s if began else 0.0)
    nodes = set(expand(job.node_list))
    noticed = [(node, change) for node in sorted(nodes) for change in changes.get(node, ())]
    # The node's own record is more exact than Slurm's, which can only say that a node does not respond.
    for found in (own, noticed):
        near = [
            (change.time > end, abs(change.time - end), node, change)
            for node, change in found
            if node in nodes
            and max(end - _BEFORE_SECONDS, began) <= change.time <= end + _AFTER_SECONDS
            and fault(change.reason)
        ]
        for *_, node, change in sorted(near, key=lambda row: row[:3])[:1]:
            seconds = round(end - change.time)
            when = f"{seconds} s before" if seconds >= 0 else f"noticed {-seconds} s after"
            return f"{node} had the fault '{fault(change.reason)}', {when} the job ended ({change.reason})"
    return None


def expand(node_list: str) -> Iterator[str]:
    """Yield the names of the nodes in a list in Slurm's notation, such as "gpu-[0-1,3]"."""
    for prefix, ranges in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", node_list):
        if not ranges:
            yield prefix
            continue
        for part in ranges.split(","):
            low, _, high = part.partition("-")
            if int(high or low) - int(low) >= _MAX_RANGE:
                raise ValueError(f"{node_list[:100]}: too many nodes")
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
    if fault is None and ended.state == "FAILED" and ended.exit_code > _SIGNALLED:
        warn(f"yard: a signal ended the rank; looking for faults of the job's nodes for up to {_NOTICE_SECONDS} s")
        deadline = time.monotonic() + _NOTICE_SECONDS
        while fault is None and time.monotonic() < deadline:
            time.sleep(_NOTICE_SECONDS / 6)
            fault = node_faults(remote, [ended]).get(job)
    if as_json:
        say_json({**ended.as_json(), "node_fault": fault})
        return ended.verdict
    warn(f"yard: job {job} {ended.state}: {'; '.join(filter(None, (explain(ended), fault)))}")
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
    """Cancel jobs, or all of the user's active jobs if `jobs` is empty. Raises JobError for an unknown job."""
    cluster = remote.stack.cluster
    scheduler = scheduler_of(cluster.scheduler)
    if jobs:
        chosen = [read_job(remote, job) for job in jobs]
    else:
        chosen = [job for job in scheduler.recent(remote, 1) if job.user == remote.stack.user and not job.ended]
    running = [job for job in chosen if not job.ended]
    for job in running:
        acting_for_owner(remote, job, reads=False)
    if running:
        scheduler.cancel(remote, running)
    states = [f"had already ended, {job.state}" if job.ended else "cancelled" for job in chosen]
    lines = [f"job {job.id} ({job.name}): {state}" for job, state in zip(chosen, states, strict=True)]
    facts = {"cancelled": [job.id for job in running], "already_ended": [job.id for job in chosen if job.ended]}
    answer("\n".join(lines) or "no job is pending or running", facts, as_json)
    for job in running:
        warn(f"yard: the processes of job {job.id} are ending; `yard wait {job.id}` waits for them")


def resume_job(remote: Remote, job: int, as_json: bool) -> None:
    """Restart a failed or cancelled job in its run folder. Raises JobError if the job is active or has completed.

    After `yard cancel`, Slurm can take a minute to end the job's processes, so wait for a job that is ending.
    """
    found, deadline = read_job(remote, job), time.monotonic() + _END_SECONDS
    if found.state == "COMPLETING":
        warn(f"yard: job {job} is ending")
    while found.state == "COMPLETING" and time.monotonic() < deadline:
        time.sleep(2)
        found = read_job(remote, job)
    if not found.ended:
        raise JobError(f"job {job} is {found.state}; run `yard wait {job}`, and then resume it")
    if found.state == "COMPLETED":
        raise JobError(f"job {job} has completed; submit a new job")
    remote = acting_for_owner(remote, found, reads=False)
    try:
        number = scheduler_of(remote.stack.cluster.scheduler).resume(remote, found)
    except RemoteError as error:
        if limit := refusal(remote, found.user, str(error)):
            raise RemoteError(f"Slurm refused job {job}, because {limit}") from error
        raise
    facts = {"id": number, "resumes": job, "run_dir": found.run_dir}
    answer(f"job {number} ({found.name}) continues in {found.run_dir}", facts, as_json)


def _show_notices(remote: Remote) -> None:
    for notice in remote.notices:
        warn(f"yard: {notice}")


def _closed(remote: Remote, job: Job) -> str:
    """Return why a job's partition is down: the head's notices or, without notices, an operator's command."""
    fix = f"an operator opens it with `scontrol update partitionname={job.group} state=up`"
    return "; ".join(remote.notices) or f"somebody has closed the node group {job.group}. Fix: {fix}"


def _waits(remote: Remote, pending: Sequence[Job]) -> dict[int, str]:
    """Return a mapping from job number to a sentence, for jobs that wait because of a limit or for missing nodes."""
    limits = [job.id for job in pending if is_limit(job.reason)]
    found = held(remote, limits) if limits else {}
    rest = [job for job in pending if job.id not in found]
    if not rest or remote.stack.cluster.scheduler != "slurm":
        return found
    return found | waits_for_nodes(rest, remote.run("sinfo -a -h -N -o '%R|%N|%T|%E'"))


def list_jobs(remote: Remote, days: int, as_json: bool, *, long: bool) -> None:
    """Print the jobs from the last `days` days. If `long` is set, include goodput and lost time."""
    found = scheduler_of(remote.stack.cluster.scheduler).recent(remote, days)
    _show_notices(remote)
    goodputs = goodputs_of(remote, found) if long else {}
    faults = node_faults(remote, found)
    pending = [job for job in found if job.state == "PENDING"]
    waits = _waits(remote, pending)
    waits |= {job.id: _closed(remote, job) for job in pending if job.reason == "PartitionDown"}
    if as_json:
        rows = [job.as_json() | {"node_fault": faults.get(job.id)} for job in found]
        rows = [row | ({"why": waits[row["id"]]} if row["id"] in waits else {}) for row in rows]
        say_json([row | {"goodput": goodputs.get(str(row["id"]))} for row in rows])
        return
    if not found:
        say("no jobs; `yard submit hello` starts one")
        return
    lines, users = [], remote.stack.cluster.users
    for job in found:
        nodes = job.node_list or counted(job.nodes, "node")
        restarts = "" if job.restarts is None else str(job.restarts)
        used = goodputs.get(str(job.id))
        cells = (f"{used['goodput']:.0%}", duration(round(used["lost_s"]))) if used else ("", "")
        why = "; ".join(filter(None, (waits.get(job.id) or explain(job), faults.get(job.id))))
        first = (str(job.id), *([job.user] if users else []), job.name, job.state, nodes)
        lines.append((*first, duration(job.elapsed_s), restarts, *(cells if long else ()), why))
    more = ("GOODPUT", "LOST") if long else ()
    owner = ("USER",) if users else ()
    table(("JOB", *owner, "NAME", "STATE", "NODES", "ELAPSED", "RESTARTS", *more, "REASON"), lines, COLOURS)


def goodputs_of(
    remote: Remote, jobs: Iterable[Job], folder: str | None = None
) -> dict[str, Mapping[str, float] | None]:
    """Return a mapping from job number to goodput. The goodput is None if the job has recorded no steps.

    `folder` contains the run folders, or is None for those of the user.
    """
    folder = folder or f"{remote.stack.jobs_path}/"
    # Only run folders in `folder` are read, because other users choose their jobs' working directories.
    words = [f"{job.id}={job.run_dir}" for job in jobs if job.run_dir.startswith(folder)]
    program = Path(goodput.__file__).read_bytes()
    found: dict[str, Mapping[str, float] | None] = json.loads(
        remote.run(shlex.join(["python3", "-", *words]), stdin=program)
    )
    return found


def show_log(remote: Remote, job: int, rank: int, as_json: bool) -> None:
    """Print a rank's current log, or the job's state if the log is empty."""
    owner, reader = remote.stack.user, remote
    if remote.stack.login:
        before = read_job(remote, job)
        owner, reader = before.user, acting_for_owner(remote, before, reads=True)
    # follow.sh ends immediately, because stdin is closed.
    text = reader.run(_follow_line(reader, owner, job, rank, 0), seconds=120).partition(_TRAILER)[0]
    found = read_job(remote, job)
    if as_json:
        say_json({**found.as_json(), "rank": rank, "lines": text.splitlines()})
        return
    if fault := node_faults(remote, [found]).get(job):
        warn(f"yard: job {job} {found.state}: {explain(found)}; {fault}")
    if text:
        payload(text)
        if found.state == "RUNNING" and all(line.startswith("yard: ") for line in text.splitlines()):
            warn(describe_silence(job, found.state, "", "0"))
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
    try:
        found = node_rows(remote)
        _show_notices(remote)
    except RemoteError as error:
        if cluster.unready is None:
            raise
        warn(f"yard: the states of the nodes are unknown: {error}")
        found = _node_rows(cluster, {}, {}, missing="")
    if text := cluster.warning:
        warn(f"yard: {text}")
    if as_json:
        say_json(found)
        return
    rows = [
        (
            *map(node.get, ("name", "group", "state")),
            f"{node['gpus']} {node['gpu_type'] or ''}".strip(),
            node["private_ip"],
            node["why"],
        )
        for node in found
    ]
    table(("NODE", "GROUP", "STATE", "GPUS", "PRIVATE IP", "REASON"), rows, COLOURS)
    out_of_service = any(node["why"] for node in found)
    if cluster.scheduler != "slurm":
        return
    if out_of_service and remote.stack.has_admin_login:
        say(f"`yard heal --stack {remote.stack.name}` prints what each node that is out of service needs")
    elif not out_of_service:
        # slurmctld asks an idle node's slurmd only once a minute (HealthCheckInterval in components/node/slurm.py).
        say("states can be a minute old; `yard doctor` checks all nodes now")


def node_rows(remote: Remote) -> list[dict[str, Any]]:
    """Return the head and all nodes with their states and reasons, in the format that `--json` prints."""
    scheduler = scheduler_of(remote.stack.cluster.scheduler)
    states = scheduler.nodes(remote)
    is_complete = all(is_in_service(state) for state, _ in states.values())
    authors = {} if is_complete else scheduler.authors(remote)
    missing = "Slurm does not list this node; run `pulumi up`"
    for name, why in stopped_machines(remote.stack, {name: state for name, (state, _) in states.items()}).items():
        states[name] = ("off", why)
        authors.pop(name, None)
    return _node_rows(remote.stack.cluster, states, authors, missing)


def _node_rows(
    cluster: Cluster, states: Mapping[str, tuple[str, str]], authors: Mapping[str, str], missing: str
) -> list[dict[str, Any]]:
    """Return the rows. `missing` is the reason of nodes without a state."""
    head = {"name": cluster.head.name, "group": "", "state": "head", "reason": "", "why": ""}
    found: list[dict[str, Any]] = [{**head, "private_ip": cluster.head.private_ip, "gpus": 0, "gpu_type": None}]
    for node in cluster.nodes:
        state, reason = states.get(node.name, ("unknown", missing))
        why = explain_node(state, reason, authors.get(node.name, ""))
        # In a group with spares, Slurm reserves each node that runs no job.
        state = "spare" if state == "reserved" and node.group in cluster.spares else state
        state = (power_state(state) or state) if is_in_service(state) else state.replace("~", "")
        facts = {"name": node.name, "group": node.group, "state": state, "reason": reason, "why": why}
        found.append({**facts, "private_ip": node.private_ip, "gpus": node.gpus, "gpu_type": node.gpu_type})
    return found


def _list_history(remote: Remote, as_json: bool) -> None:
    path = shlex.quote(f"{remote.stack.cluster.state_dir}/{HISTORY}")
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
