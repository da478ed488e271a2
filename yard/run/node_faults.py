"""Finds the faults of a job's nodes around the end of the job, because a sick node can make a rank fail."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from yard.heal.case import fault
from yard.run.queue import Job
from yard.stack.remote import Remote

_BEFORE_SECONDS, _AFTER_SECONDS = 600, 180
"""Time around the end of a job. Slurm can need a minute or more to notice a fault that has already ended the job."""
_SUSPECT = frozenset({"FAILED", "NODE_FAIL", "TIMEOUT"})


def node_faults(remote: Remote, jobs: Iterable[Job]) -> dict[int, str]:
    """Return a sentence by job number, for each failed job with a node that had a fault around the job's end."""
    cluster = remote.stack.cluster
    folder = f"{cluster.shared_path}/jobs/"
    # Other users choose the working directories of their jobs.
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
    """Yield the names in Slurm's notation, for example "gpu-[0-1,3]"."""
    for prefix, ranges in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?,?", node_list):
        if not ranges:
            yield prefix
            continue
        for part in ranges.split(","):
            low, _, high = part.partition("-")
            for number in range(int(low), int(high or low) + 1):
                yield f"{prefix}{number:0{len(low)}}"
