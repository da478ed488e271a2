"""Parameters of the bandwidth gate, which the head runs (cloud-init/files/usr/local/lib/trainyard/bandwidth)."""

from __future__ import annotations

import json
from typing import Any

from components.catalog import fabrics
from components.plan.plan import ClusterPlan, HostPlan
from yard.contract.checkout import ROOT

ALL_REDUCE = ROOT / "yard" / "workloads" / "allreduce.py"
_REAL_GPUS = "/dev/nvidia"


def render_gates(plan: ClusterPlan) -> str | None:
    """Return gates.json with the groups to measure, or None if no group is measured.

    By default, only groups with real GPUs are measured, because a measurement on emulated machines takes a minute.
    Bandwidths are in GB/s. A number in the stack file is the floor for pairs of nodes.
    """
    if plan.busbw_gate == "off" or plan.scheduler != "slurm":
        return None
    first = {host.group: host for host in reversed(plan.workers) if host.machine.gpus}
    groups = {
        str(group): _group(plan, host)
        for group, host in sorted(first.items(), key=lambda item: str(item[0]))
        if plan.busbw_gate != "default" or host.machine.gpu_device == _REAL_GPUS
    }
    return json.dumps(groups, indent=1, sort_keys=True) + "\n" if groups else None


def _group(plan: ClusterPlan, host: HostPlan) -> dict[str, Any]:
    floors, is_real = host.machine.floors, host.machine.gpu_device == _REAL_GPUS
    is_set = isinstance(plan.busbw_gate, float)
    return {
        "alone": floors.node if floors else None,
        "pair": plan.busbw_gate if is_set else floors.pair if floors else None,
        # Emulated machines have one core, which is too slow for a second rank.
        "ranks": host.machine.gpus if is_real else 1,
        "real_gpus": is_real,
        "required": is_set,
        "env": dict(fabrics()[host.machine.fabric].env),
    }
