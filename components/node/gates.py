"""Parameters of the bandwidth gate, which the head runs (cloud-init/files/usr/local/lib/trainyard/bandwidth)."""

from __future__ import annotations

import json
from typing import Any

from components.catalog import fabrics
from components.plan.plan import ClusterPlan, HostPlan
from trainyard.checkout import ROOT

ALL_REDUCE = ROOT / "yard" / "workloads" / "allreduce.py"
_REAL_GPUS = "/dev/nvidia"
_GIB = 4
"""Size of the messages without a floor in the catalog. Three buffers fit on the smallest GPU of the catalog."""
_EMULATED_SIZE = "4M"
"""On CPUs, larger messages take minutes."""


def render_gates(plan: ClusterPlan) -> str | None:
    """Return gates.json with the groups to measure, or None if no group is measured.

    By default, only groups with real GPUs are measured, because a measurement on emulated machines takes a minute.
    Bandwidths are in GB/s. A number in the stack file is the floor for pairs of nodes. In a group of one node, the
    number is the floor for this node if the catalog contains no floor.
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
    number = plan.busbw_gate if isinstance(plan.busbw_gate, float) else None
    node, pair = (floors.node, floors.pair) if floors else (None, None)
    sizes = [f"{gib or _GIB}G" for gib in ((floors.node_gib, floors.pair_gib) if floors else (None, None))]
    has_pairs = sum(worker.group == host.group for worker in plan.workers) > 1
    return {
        "alone": number if node is None and not has_pairs else node,
        "pair": pair if number is None else number,
        # Emulated machines have one core, which is too slow for a second rank.
        "ranks": host.machine.gpus if is_real else 1,
        "real_gpus": is_real,
        "sizes": sizes if is_real else [_EMULATED_SIZE] * 2,
        "drain_unmeasured": plan.unmeasured == "drain",
        "env": dict(fabrics()[host.machine.fabric].env),
    }
