"""Parameters of the repair service, which runs on the head (cloud-init/files/usr/local/lib/trainyard/repair)."""

from __future__ import annotations

import json

from components.plan.plan import ClusterPlan
from components.spec.model import CloudSpec

_SILENT_SECONDS = 15
_SILENT_CLOUD_SECONDS = 35
"""Clouds pause machines for maintenance. The assumed maximum pause is 30 seconds."""


def render_repair(plan: ClusterPlan) -> str | None:
    """Return repair.json, or None without Slurm.

    `silent_seconds`: how long a node must be unresponsive before it counts as lost. `groups`: the number of spares
    and the addresses of the nodes in each group.
    """
    if plan.scheduler != "slurm":
        return None
    groups = {
        name: {
            "spares": section.spares,
            "nodes": {host.name: str(host.private_ip) for host in plan.group(name) if host != plan.head},
        }
        for name, section in plan.groups.items()
    }
    seconds = _SILENT_CLOUD_SECONDS if isinstance(plan.platform, CloudSpec) else _SILENT_SECONDS
    return json.dumps({"silent_seconds": seconds, "groups": groups}, indent=1) + "\n"
