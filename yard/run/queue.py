"""Jobs and nodes, their states, and parsers for the text that scontrol and sacct print. All functions are pure.

The text format of both commands has not changed since Slurm 22.05, while each release has changed the JSON format.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from trainyard import idle_gpus
from trainyard.errors import RemoteError
from trainyard.faults import POWER, fault, flags, is_in_service, is_own, reason_for
from yard.job.spec import RUN_DIR, parse_seconds

LIVE = frozenset(
    {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}
)
NO_RESPONSE = "slurmd does not respond to slurmctld; Slurm has not recorded a reason yet"
NO_REASON = "Slurm has recorded no reason"
SACCT_FIELDS = "JobIDRaw,State,ExitCode,NNodes,NodeList,ElapsedRaw,Partition,User,AdminComment,WorkDir,JobName"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job. `exit_code` is 128 + N if signal N ended the job. Slurm's accounting does not record `restarts`."""

    id: int
    name: str
    user: str
    group: str
    state: str
    reason: str
    nodes: int
    node_list: str
    elapsed_s: int
    restarts: int | None
    exit_code: int
    run_dir: str

    @property
    def ended(self) -> bool:
        """Whether the job has ended and will not restart automatically."""
        return self.state not in LIVE

    @property
    def verdict(self) -> int:
        """The exit code of commands that wait for the job: 0 if the job completed, and another number otherwise."""
        return 0 if self.state == "COMPLETED" else self.exit_code or 1

    def as_json(self) -> dict[str, Any]:
        """Return the job in the format that `--json` prints."""
        return {**asdict(self), "why": explain(self)}


def parse_scontrol(text: str) -> list[Job]:
    """Parse the output of `scontrol -o show jobs`, which has one job per line."""
    return list(_valid(_from_scontrol, (line for line in text.splitlines() if line.startswith("JobId="))))


def parse_sacct(text: str) -> list[Job]:
    """Parse the output of `sacct -X -n -P` with the fields in SACCT_FIELDS."""
    return list(_valid(_from_sacct, (line for line in text.splitlines() if re.match(r"\d+\|", line))))


def _valid(parse: Callable[[str], Job | None], lines: Iterable[str]) -> Iterator[Job]:
    """Yield the jobs in the lines. Lines with missing or invalid fields are skipped, because they belong to a name."""
    for line in lines:
        with suppress(KeyError, ValueError, IndexError):
            if job := parse(line):
                yield job


def confirmed(jobs: Sequence[Job], owners: str) -> list[Job]:
    """Return the jobs whose user agrees with `owners`, which contains a line `number|user` for each job.

    A job's name can contain line breaks, and so imitate the descriptions of other jobs. Jobs with more than one
    description are therefore omitted.
    """
    known = {tuple(line.split("|")) for line in owners.splitlines()}
    omitted = repeated(jobs)
    return [job for job in jobs if job.id not in omitted and (str(job.id), job.user) in known]


def repeated(jobs: Sequence[Job]) -> set[int]:
    """Return the numbers of the jobs with more than one description."""
    return {number for number, times in Counter(job.id for job in jobs).items() if times > 1}


def parse_one(text: str, number: int) -> Job | None:
    """Return the job with this number in the output of scontrol or sacct, or None if Slurm does not list the job."""
    found = [job for job in parse_scontrol(text) or parse_sacct(text) if job.id == number]
    return found[-1] if found else None


def submitted_job(printed: str) -> int:
    """Return the job number: the last word that a submission printed. Raises RemoteError if it is not a number."""
    last = printed.split()[-1:]
    if not last or not last[0].isdigit():
        text = " ".join(printed.split())
        raise RemoteError(f"the head printed '{text}' instead of a job number; `yard ps` lists the submitted jobs")
    return int(last[0])


def explain(job: Job) -> str:
    """Explain a job's state."""
    if job.state == "PENDING":
        return waiting(job.reason)
    known = _STATES.get(job.state)
    text = known.format(code=job.exit_code, id=job.id) if known else job.state.lower().replace("_", " ")
    idle = idle_gpus.explain_end(job.reason)
    return f"{text}; {idle}" if idle else text


def waiting(reason: str) -> str:
    """Explain Slurm's reason for a pending job."""
    return _WAITING.get(reason, f"waiting ({reason})")


def explain_node(state: str, reason: str, set_by: str = "") -> str:
    """Explain a node's state: the reason, and who set it if the reason is not a fault. Empty for a node in service.

    `set_by` is the user and the time, or empty if Slurm has set the state.
    """
    if reason:
        is_foreign = set_by and not is_own(reason) and fault(reason) is None
        return f"{reason} (set by {set_by})" if is_foreign else reason
    if is_in_service(state):
        return ""
    if not flags(state).isdisjoint({"NOT_RESPONDING", "UNKNOWN"}):
        return NO_RESPONSE
    return f"set by {set_by} without a reason" if set_by else NO_REASON


def waits_for_nodes(jobs: Iterable[Job], text: str) -> dict[int, str]:
    """Return a mapping from job number to a sentence, for the pending jobs whose groups all lack nodes.

    A group lacks nodes if one of its machines cannot start, or if fewer nodes are in service than the job needs. Jobs
    that wait for something else are omitted. `text` contains lines `group|node|state|reason` from sinfo.
    """
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for line in text.splitlines():
        if line.count("|") >= 3:  # noqa: PLR2004  (three separators)
            group, *row = line.split("|", 3)
            groups.setdefault(group, []).append((row[0], row[1], row[2]))
    found = {}
    for job in jobs:
        if job.reason in _NO_SHORTAGE:
            continue
        sentences = [_shortage(groups.get(name, ()), name, job.nodes) for name in job.group.split(",")]
        if all(sentences):
            found[job.id] = "; ".join(sentences)
    return found


def _shortage(nodes: Sequence[tuple[str, str, str]], group: str, needed: int) -> str:
    """Return why a group cannot provide `needed` nodes, or "". `nodes` contains each node's name, state and reason."""
    prefix = reason_for(POWER, "")
    for name, state, reason in nodes:
        if "DOWN" in flags(state) and reason.startswith(prefix):
            return f"waiting for a machine: {name}: {reason.removeprefix(prefix)}"
    out = [(name, state, reason) for name, state, reason in nodes if not is_in_service(state)]
    if not out or len(nodes) - len(out) >= needed:
        return ""
    name, state, reason = out[0]
    why = explain_node(state, "" if reason == "none" else reason)
    more = f", and {len(out) - 1} more" if out[1:] else ""
    return (
        f"waiting for nodes: {len(nodes) - len(out)} of {len(nodes)} nodes of group {group} are in service, but the "
        f"job needs {needed}; {name} is {state} ({why}){more}. `yard heal` shows the next repair step"
    )


def power_state(state: str) -> str | None:
    """Return the state of an elastic node's machine ("off", "stopping" or "starting"), or None if it is on.

    `state` is from sinfo, which marks power states with a suffix (sinfo(1) of Slurm 24.11, "NODE STATE CODES").
    """
    marks = {"~": "off", "%": "stopping", "!": "stopping", "#": "starting"}
    return next((word for mark, word in marks.items() if mark in state), None)


def parse_authors(text: str) -> dict[str, str]:
    """Return a mapping from node to the user and time of its reason, from sinfo's lines `node|user|time`."""
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 2)  # noqa: PLR2004  (two separators)
    return {name: f"{user}, {when}" for name, user, when in rows if user not in {"", "Unknown", "slurm"}}


_WAITING = {
    "None": "submitted a moment ago",
    "Resources": "waiting for free nodes",
    "Priority": "waiting for jobs with a higher priority",
    "BeginTime": "restarts within seconds; Slurm delays the restart so that old ranks can end",
    "Dependency": "waiting for another job",
    "DependencyNeverSatisfied": "an earlier job, which had to complete first, has failed; Slurm cancels this job",
    "JobHeldUser": "held by its owner; `scontrol release` releases it",
    "JobHeldAdmin": "held by an administrator",
    "PartitionTimeLimit": "its time limit exceeds its node group's limit",
    "ReqNodeNotAvail": "a required node is down or reserved",
    "Nodes_required_for_job_are_DOWN": "waiting for nodes that are down, drained or reserved (see `yard nodes`)",
    "NodeDown": "a required node is down",
    "PartitionDown": "its node group is closed (see `yard ps`)",
    "PartitionConfig": "requires more resources than its node group has",
}

_NO_SHORTAGE = frozenset(
    {
        "Dependency",
        "DependencyNeverSatisfied",
        "JobHeldAdmin",
        "JobHeldUser",
        "PartitionConfig",
        "PartitionDown",
        "PartitionTimeLimit",
    }
)
"""Slurm's reasons for which a job would not start even if its groups had enough nodes."""

_STATES = {
    "RUNNING": "running",
    "COMPLETING": "ending",
    "CONFIGURING": "its nodes are starting",
    "COMPLETED": "every rank ended with exit code 0",
    "FAILED": "a rank failed with exit code {code}",
    "CANCELLED": "cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "exceeded its memory limit",
    "LOST": "its runner was killed or the head restarted; `yard resume {id}` continues from the last checkpoint",
    "PREEMPTED": "preempted by a job with a higher priority",
}


def _exit_code(text: str) -> int:
    code, _, signal = text.partition(":")
    return int(code) or (128 + int(signal) if signal.isdigit() and int(signal) else 0)


def _from_scontrol(line: str) -> Job | None:
    """Return the job in a line of scontrol's output, or None if a user's text in it looks like the job's owner.

    Slurm prints the job's name unchanged, before the owner and the state (src/scontrol/info_job.c of Slurm 24.11.5,
    read 2026-11-26), so a user could otherwise choose a name that makes the job appear to be another user's.
    """
    start, _, owned = line.partition(" UserId=")
    first, _, name = start.partition(" JobName=")
    if not owned or " UserId=" in owned:
        return None
    found: dict[str, str] = {}
    for match in re.finditer(r"(?:^| )([A-Z][A-Za-z:/]*)=(\S*)", f"{first} UserId={owned}"):
        found.setdefault(match[1], match[2])
    # Some reasons also name nodes, such as `ReqNodeNotAvail,_UnavailableNodes:w1`.
    reason, comment = found.get("Reason", "None").partition(",")[0], found.get("AdminComment", "")
    return Job(
        id=int(found["JobId"]),
        name=name,
        user=found.get("UserId", "").partition("(")[0],
        group=found.get("Partition", ""),
        state=found["JobState"],
        reason=comment if found["JobState"] != "PENDING" and idle_gpus.explain_end(comment) else reason,
        nodes=int(found.get("NumNodes", "0").split("-")[0]),
        node_list="" if found.get("NodeList") == "(null)" else found.get("NodeList", ""),
        elapsed_s=parse_seconds(found.get("RunTime", "")) or 0,
        restarts=int(found.get("Restarts", "0")),
        exit_code=_exit_code(found.get("ExitCode", "0:0")),
        run_dir=_run_folder(found.get("WorkDir", "")),
    )


def _from_sacct(line: str) -> Job:
    job, state, code, nodes, node_list, elapsed, group, user, comment, folder, name = line.split("|", 10)
    # A cancelled job's state contains a user id: `CANCELLED by 2000`.
    state = state.split()[0]
    if state == "REQUEUED":
        # Slurm's accounting keeps the state REQUEUED if a job is cancelled between two starts.
        state = "CANCELLED"
    return Job(
        id=int(job),
        name=name,
        user=user,
        group=group,
        state=state,
        reason=comment if idle_gpus.explain_end(comment) else "None",
        nodes=int(nodes or 0),
        node_list="" if node_list == "None assigned" else node_list,
        elapsed_s=int(elapsed or 0),
        restarts=None,
        exit_code=_exit_code(code),
        run_dir=_run_folder(folder),
    )


def _run_folder(folder: str) -> str:
    """Return the run folder of a job that runs in `folder`. A user's Slurm script runs in the subfolder `code`."""
    # Users choose their jobs' working directories, and `..` could lead into another user's folder. A forged folder
    # could also be relative, or look like an option.
    folder = posixpath.normpath(folder) if folder.startswith("/") else ""
    parent, _, name = folder.rpartition("/")
    return parent if name == "code" and RUN_DIR.search(parent) else folder
