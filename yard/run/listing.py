"""Commands that print jobs, logs and nodes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.errors import RemoteError
from trainyard.outputs import Cluster
from yard.job.rules import RUN_DIR
from yard.run import goodput
from yard.run.commits import with_commits
from yard.run.logs import read_job, read_log
from yard.run.node_faults import node_faults
from yard.run.queue import Job, explain
from yard.run.schedulers.registry import scheduler_of
from yard.show import duration, payload, say, say_json, table, warn
from yard.stack.remote import Remote

_COLOURS = {
    **dict.fromkeys(("FAILED", "NODE_FAIL", "TIMEOUT", "LOST", "down", "down*"), "red"),
    **dict.fromkeys(("COMPLETED", "idle"), "green"),
    **dict.fromkeys(("RUNNING", "spare"), "cyan"),
}
_MISSING = ("unknown", "Slurm does not list this node; run `pulumi up`")
"""State and reason for a worker that appears only in the stack's outputs."""


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """A host. `state` is the scheduler's state, 'head' for the head, which runs no jobs, or 'spare'.

    In a group with spares, each node that Slurm reserves and that runs no job is a spare.
    """

    name: str
    group: str = ""
    state: str
    reason: str = ""
    private_ip: str
    gpus: int = 0
    gpu_type: str | None = None


def list_jobs(remote: Remote, days: int, as_json: bool, *, long: bool) -> None:
    """Print the jobs from the last `days` days. With `long`, include goodput and lost time."""
    found = scheduler_of(remote.stack.cluster.scheduler).recent(remote, days)
    goodputs = _goodputs(remote, found) if long else {}
    faults = node_faults(remote, found)
    if as_json:
        rows = [row | {"node_fault": faults.get(row["id"])} for row in with_commits(remote, found)]
        say_json([row | {"goodput": goodputs.get(str(row["id"]))} for row in rows] if long else rows)
        return
    if not found:
        say("no jobs; `yard submit hello` starts one")
        return
    lines = [
        (
            str(job.id),
            job.name,
            job.state,
            job.node_list or (f"{job.nodes} node" if job.nodes == 1 else f"{job.nodes} nodes"),
            duration(job.elapsed_s),
            "" if job.restarts is None else str(job.restarts),
            *(_cells(goodputs.get(str(job.id))) if long else ()),
            "; ".join(filter(None, (explain(job), faults.get(job.id)))),
        )
        for job in found
    ]
    more = ("GOODPUT", "LOST") if long else ()
    table(("JOB", "NAME", "STATE", "NODES", "ELAPSED", "RESTARTS", *more, "REASON"), lines, _COLOURS)


def _cells(found: Mapping[str, float] | None) -> tuple[str, str]:
    """Return the goodput and the lost time."""
    return (f"{found['goodput']:.0%}", duration(round(found["lost_s"]))) if found else ("", "")


def _goodputs(remote: Remote, jobs: Iterable[Job]) -> dict[str, Mapping[str, float] | None]:
    """Return the goodput of jobs by number, or None for a job without recorded steps."""
    folder = f"{remote.stack.cluster.shared_path}/jobs/"
    # Other users choose the working directories of their jobs.
    words = [f"{job.id}={job.run_dir}" for job in jobs if job.run_dir.startswith(folder)]
    program = Path(goodput.__file__).read_bytes()
    found: dict[str, Mapping[str, float] | None] = json.loads(
        remote.run(shlex.join(["python3", "-", *words]), stdin=program)
    )
    return found


def show_log(remote: Remote, job: int, rank: int, as_json: bool) -> None:
    """Print the current log of a rank, or the job's state if the log is empty."""
    text = read_log(remote, job, rank)
    if as_json:
        say_json({**with_commits(remote, [read_job(remote, job)])[0], "rank": rank, "lines": text.splitlines()})
        return
    found = read_job(remote, job)
    if fault := node_faults(remote, [found]).get(job):
        warn(f"yard: job {job} {found.state}: {explain(found)}; {fault}")
    if text:
        payload(text)
        return
    state = f"job {job} is {found.state}: {explain(found)}"
    if RUN_DIR.search(found.run_dir):
        warn(f"yard: rank {rank} has no output; {state}")
    else:
        # The default value of sbatch's --output option.
        log = f"{found.run_dir}/slurm-{job}.out"
        warn(f"yard: job {job} was not submitted with `yard submit`; its log is probably {log}; {state}")


def _hosts(cluster: Cluster, states: dict[str, tuple[str, str]]) -> list[NodeState]:
    """Return the head and all workers. `states`: state and reason of each worker in the scheduler."""
    found = [NodeState(name=cluster.head.name, state="head", private_ip=cluster.head.private_ip)]
    for node in cluster.nodes:
        state, reason = states.get(node.name, _MISSING)
        if state == "reserved" and node.group in cluster.spares:
            state = "spare"
        found.append(
            NodeState(
                name=node.name,
                group=node.group,
                state=state,
                reason=reason,
                private_ip=node.private_ip,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
            )
        )
    return found


def list_nodes(remote: Remote, as_json: bool, *, history: bool = False) -> None:
    """Print all hosts and their states or, with `history`, when each worker left service and returned."""
    cluster = remote.stack.cluster
    if history:
        _list_history(remote, as_json)
        return
    states: dict[str, tuple[str, str]] = {}
    try:
        states = scheduler_of(cluster.scheduler).nodes(remote)
    except RemoteError as error:
        if cluster.unready is None:
            raise
        warn(f"yard: the states of the nodes are unknown: {error}")
    if text := cluster.warning:
        warn(f"yard: {text}")
    found = _hosts(cluster, states)
    if as_json:
        say_json([asdict(node) for node in found])
        return
    rows = [
        (node.name, node.group, node.state, f"{node.gpus} {node.gpu_type or ''}".strip(), node.private_ip, node.reason)
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
