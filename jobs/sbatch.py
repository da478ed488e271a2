"""The #SBATCH lines of a job's script. Pure."""

from __future__ import annotations

from jobs.launcher import Launcher, Tasks
from jobs.placement import Placement
from jobs.spec import JobSpec

_LONGEST_WARNING = 300
"""Slurm tells a job that its time is running out this many seconds before, or a quarter of a short limit."""


def warning_seconds(spec: JobSpec) -> int:
    """Return how long before its time limit a job is told."""
    return min(_LONGEST_WARNING, spec.seconds // 4)


def header(spec: JobSpec, placement: Placement, chosen: Launcher) -> list[str]:
    """Return the options, without their dashes."""
    options = [
        f"job-name={spec.name}",
        f"partition={placement.group}",
        f"nodes={placement.nodes}",
        f"ntasks-per-node={1 if chosen.tasks is Tasks.NODE else placement.tasks_per_node}",
    ]
    if spec.cpus_per_task is not None:
        options.append(f"cpus-per-task={spec.cpus_per_task}")
    if placement.gpus_per_node:
        options.append(f"gpus-per-node={placement.gpus_per_node}")
    if placement.whole_nodes:
        options.append("exclusive")
    options.append(f"mem={spec.memory_per_node or 0}")
    days, rest = divmod(spec.seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return [
        *options,
        f"time={days}-{clock}" if days else f"time={clock}",
        "requeue",
        *(["no-kill"] if chosen.elastic else []),
        "open-mode=append",
        f"signal=B:USR2@{warning_seconds(spec)}",
        "output=job.log",
    ]
