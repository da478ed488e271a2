"""Jobs that do not use their GPUs (limits.idle_gpu): the texts that nodes, the head and yard exchange through Slurm.

A node stores its report in the field `Extra` of its Slurm node, which only root and SlurmUser can change. The head
stores why it ended a job in the field `AdminComment` of the job, which the job's owner cannot change (update_node and
_update_job in slurmctld of Slurm 21.08.5 to 24.11.5, read 2026-11-27). Slurm stores both, and the latter in its
accounting. This module is part of the bundle, so it is limited to Python 3.10 and the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REPEAT_SECONDS = 60.0
"""How often a node repeats its report."""
VALID_SECONDS = 180.0
"""The age above which a report is ignored, because the node may have failed or its daemon may have stopped."""
FOLDER = "/run/trainyard/health/gpus"
"""The folder on a node in which the prolog stores the GPUs of each job, in a file with the job's number."""
_REPORT = re.compile(r"(?m) Extra=idle-gpu:(\d+):(\d+=\d+(?:,\d+=\d+)*)(?=\s|$)")
_END = re.compile(r"idle-gpu:(end|requeue):(\d+)")


def render_report(idle: Mapping[int, float], now: float) -> str:
    """Return a node's report. `idle` is a mapping from job to the seconds for which its GPUs were not used.

    `now` is in seconds since 1970. The report is empty if `idle` is.
    """
    rows = ",".join(f"{job}={seconds:.0f}" for job, seconds in sorted(idle.items()))
    return f"idle-gpu:{now:.0f}:{rows}" if rows else ""


def parse_reports(nodes: str, now: float) -> dict[int, list[int]]:
    """Return a mapping from job to the seconds that each of its nodes reports, from `scontrol -o show node`."""
    found: dict[int, list[int]] = {}
    for at, rows in _REPORT.findall(nodes):
        if abs(now - int(at)) <= VALID_SECONDS:
            for job, seconds in (row.split("=") for row in rows.split(",")):
                found.setdefault(int(job), []).append(int(seconds))
    return found


def render_end(action: str, minutes: int) -> str:
    """Return the comment on a job that the head ends or requeues. `action` is `end` or `requeue`."""
    return f"idle-gpu:{action}:{minutes}"


def explain_end(comment: str) -> str | None:
    """Return a sentence for a comment from `render_end`, or None for another comment."""
    found = _END.fullmatch(comment)
    if found is None:
        return None
    verb = "ended" if found[1] == "end" else "requeued"
    return f"{verb} because its GPUs were not used for {found[2]} minutes (limits.idle_gpu)"
