"""A job without a scheduler: job.json, which is yard's order to the runner, and the runner itself. Pure."""

from __future__ import annotations

import json
from pathlib import Path

from jobs.launcher import Tasks, launcher
from jobs.loader import LoadedJob
from jobs.placement import Placement
from jobs.sbatch import warning_seconds

ORDER = "job.json"
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
"""How the head reaches a node: it has a key, and knows every host key."""

_RUNNER = Path(__file__).parent / "runner"


def runner_files(job: LoadedJob, placement: Placement, script: str) -> dict[str, str]:
    """Return the files that the job's script needs beside it."""
    return {ORDER: render_order(job, placement, script), **_runner()}


def _runner() -> dict[str, str]:
    return {f"runner/{path.name}": path.read_text() for path in sorted(_RUNNER.glob("*.py"))}


def render_order(job: LoadedJob, placement: Placement, script: str) -> str:
    """Return job.json, whose keys runner/job.py explains. `script`: the job's, which says what it can be asked."""
    spec, chosen = job.spec, launcher(job.spec.launcher)
    order = {
        "name": spec.name,
        "group": placement.group,
        "nodes": placement.nodes,
        "min_nodes": (spec.min_nodes or 1) if chosen.elastic else placement.nodes,
        "hosts": [{"name": host.name, "ip": host.private_ip} for host in placement.hosts],
        "tasks": chosen.tasks.value,
        "others": chosen.tasks is Tasks.FIRST and "\nlisten() {" in script,
        "leaves": "\nleave() {" in script,
        "tasks_per_node": placement.tasks_per_node,
        "gpus_per_node": placement.gpus_per_node,
        "retries": spec.retries,
        "seconds": spec.seconds,
        "warn_seconds": warning_seconds(spec),
        "heartbeat_seconds": spec.heartbeat_seconds,
        "checkpoint_dir": spec.checkpoint_dir or "",
        "ssh": SSH,
    }
    return json.dumps(order, indent=1) + "\n"
