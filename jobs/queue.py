"""What Slurm says of jobs: `scontrol show jobs` (now and the last minutes) over `sacct` (the last days). Parsers, pure.

Both print the same text from 22.05 on; their JSON has changed shape with every release.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.remote import Remote

LIVE = frozenset(
    {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}
)
_RECORD = "===sacct==="
_SACCT = "JobIDRaw,State,ExitCode,NNodes,NodeList,ElapsedRaw,Partition,User,WorkDir,JobName"
_SIGNAL_BASE = 128


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job. `exit_code` is the shell's way to count: 128 and more for a signal. `restarts` None: not recorded."""

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
        """Whether it will never run again by itself."""
        return self.state not in LIVE

    @property
    def verdict(self) -> int:
        """What a command that waited for the job exits with: 0 only for a completed one."""
        if self.state == "COMPLETED":
            return 0
        return self.exit_code or 1

    def as_json(self) -> dict[str, Any]:
        """Return the job as `--json` prints it."""
        return {**asdict(self), "why": explain(self)}


def parse_scontrol(text: str) -> list[Job]:
    """Parse `scontrol -o show jobs`: one job a line."""
    return [_from_scontrol(line) for line in text.splitlines() if line.startswith("JobId=")]


def parse_sacct(text: str) -> list[Job]:
    """Parse `sacct -X -n -P` with the fields of _SACCT."""
    return [_from_sacct(line.split("|", 9)) for line in text.splitlines() if re.match(r"\d+\|", line)]


def recent_jobs(remote: Remote, days: int) -> list[Job]:
    """Return the jobs of the last `days`, newest first."""
    # A head whose accounting is down still knows what is running.
    command = (
        f"scontrol -o show jobs; echo {_RECORD}; sacct -a -X -n -P -S now-{days}days -o {_SACCT} 2>/dev/null || true"
    )
    now, _, before = remote.run(command).partition(_RECORD)
    jobs = {job.id: job for job in parse_sacct(before)}
    jobs.update({job.id: job for job in parse_scontrol(now)})
    return sorted(jobs.values(), key=lambda job: job.id, reverse=True)


def query_line(job: int) -> str:
    """Return the shell line whose output parse_one understands."""
    return f"scontrol -o show job {job} 2>/dev/null || sacct -X -n -P -j {job} -o {shlex.quote(_SACCT)}"


def parse_one(text: str) -> Job | None:
    """Parse what query_line printed. None: Slurm knows no such job."""
    found = parse_scontrol(text) or parse_sacct(text)
    return found[-1] if found else None


def explain(job: Job) -> str:
    """Return in words why the job is where it is."""
    if job.state == "PENDING":
        return _WAITING.get(job.reason, f"waiting ({job.reason})")
    if job.state in _STATES:
        return _STATES[job.state].format(code=job.exit_code, id=job.id)
    return job.state.lower().replace("_", " ")


_WAITING = {
    "None": "just submitted",
    "Resources": "waiting for nodes to become free",
    "Priority": "waiting behind jobs of higher priority",
    "BeginTime": "to start again; Slurm holds it for some seconds so that its old ranks can end",
    "Dependency": "waiting for another job",
    "JobHeldUser": "held by its owner; `scontrol release` lets it go",
    "JobHeldAdmin": "held by an administrator",
    "PartitionTimeLimit": "asks for more time than its group allows",
    "ReqNodeNotAvail": "a node it needs is down or reserved",
    "NodeDown": "a node it needs is down",
    "PartitionConfig": "asks for more than its group has",
}

_STATES = {
    "RUNNING": "running",
    "COMPLETING": "ending",
    "CONFIGURING": "its nodes are starting",
    "COMPLETED": "every rank ended well",
    "FAILED": "a rank failed with exit code {code}",
    "CANCELLED": "cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "used more memory than it had",
    "LOST": "its runner is gone, as when the head restarts; `yard resume {id}` goes on from the last checkpoint",
    "PREEMPTED": "gave way to a job of higher priority",
}


def _exit_code(text: str) -> int:
    code, _, signal = text.partition(":")
    return int(code) or (_SIGNAL_BASE + int(signal) if signal.isdigit() and int(signal) else 0)


def _reason(text: str) -> str:
    """Slurm appends node names to some reasons: `ReqNodeNotAvail,_UnavailableNodes:w1`."""
    return text.partition(",")[0]


def _from_scontrol(line: str) -> Job:
    found: dict[str, str] = {}
    for match in re.finditer(r"(?:^| )([A-Z][A-Za-z:/]*)=(\S*)", line):
        found.setdefault(match[1], match[2])
    return Job(
        id=int(found["JobId"]),
        name=found.get("JobName", ""),
        user=found.get("UserId", "").partition("(")[0],
        group=found.get("Partition", ""),
        state=found["JobState"],
        reason=_reason(found.get("Reason", "None")),
        nodes=int(found.get("NumNodes", "0").split("-")[0]),
        node_list="" if found.get("NodeList") == "(null)" else found.get("NodeList", ""),
        elapsed_s=_elapsed(found.get("RunTime", "")),
        restarts=int(found.get("Restarts", "0")),
        exit_code=_exit_code(found.get("ExitCode", "0:0")),
        run_dir=found.get("WorkDir", ""),
    )


def _from_sacct(row: Sequence[str]) -> Job:
    job, said, code, nodes, node_list, elapsed, group, user, folder, name = row
    state = said.split()[0]
    if state == "REQUEUED":
        # Cancelled between two starts: the controller has forgotten it, and the accounting was told of no other end.
        state = "CANCELLED"
    return Job(
        id=int(job),
        name=name,
        user=user,
        group=group,
        state=state,
        reason="None",
        nodes=int(nodes or 0),
        node_list="" if node_list == "None assigned" else node_list,
        elapsed_s=int(elapsed or 0),
        restarts=None,
        exit_code=_exit_code(code),
        run_dir=folder,
    )


def _elapsed(text: str) -> int:
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return 0
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total + (int(days) * 86400 if dash else 0)
