"""Documents like those that `yard pull` writes, for a job on two nodes with eight GPUs each."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from yard.run import flight

START = 1_795_790_000
GOODPUT = {
    "goodput": 0.62, "wall_s": 4000.0, "useful_s": 2480.0, "lost_s": 1520.0, "waiting_s": 300.0, "redone_s": 400.0,
    "saving_s": 120.0, "other_s": 700.0, "starts": 2, "steps": 10_000, "redone_steps": 1600,
}  # fmt: skip
BILL = {
    "job": 7, "user": "ann", "name": "train", "starts": 2, "gpu_hours": 16.44, "usd": 202.1, "steps": 10_000,
    "redone_steps": 1600, "usd_per_step": 0.0135, "useful_usd": 135.4, "redone_usd": 21.8, "saving_usd": 6.5,
    "other_usd": 38.4,
}  # fmt: skip


def node(name: str, rank: int, start: int = 1, *, clock: int = 1755, reasons: int = 4, **more: Any) -> dict[str, Any]:
    """Return what the head prints about a node whose GPU 3 has `clock` and `reasons`."""
    facts = {
        "node": name, "start": start, "node_rank": rank, "tasks": 8, "began": START, "boot_id": f"boot-{name}",
        "software": {"system": "Ubuntu 24.04", "kernel": "6.8.0-51", "GPU driver": "570.86.15"},
        "hardware": {"GPUs": "8", "GPU": "NVIDIA H100 80GB HBM3", "power limit (W)": "700.00", "health": "no fault"},
    }  # fmt: skip
    gpus = [[[95, 640.0, 1755, 62, 4, 70_000]] * 3 + [[95, 640.0 * clock / 1755, clock, 86, reasons, 70_000]] + [
        [96, 645.0, 1755, 63, 4, 70_000]] * 4]  # fmt: skip
    rows = [[START + 10 * at, 12, gpus[0]] for at in range(100)]
    found = flight.read_node([json.dumps(facts), *map(json.dumps, rows)])
    assert found is not None
    return {**found, **more}


@cache
def metrics(steps: int = 10_000, slow: Sequence[int] = (), step_ms: float = 212.0) -> dict[str, Any]:
    """Return the columns of a job's steps. The ranks in `slow` need 118 ms of own time, and the others 100 ms."""
    lines = (
        json.dumps({
            "step": step, "steps": 1, "step_ms": step_ms + step % 7 - 3 + (900 if step % 997 == 0 else 0),
            "time": START + step * 0.2, "loss": 9 / (1 + step / 400) + 2, "tokens_per_s": 4.9e5 + step % 50,
            "data_ms": 1.5, "rank_ms": [118 if rank in slow else 100 for rank in range(16)],
        })
        for step in range(1, steps + 1)
    )  # fmt: skip
    return flight.read_metrics(lines)


def document(job: int = 7, **read: Any) -> dict[str, Any]:
    """Return the document of a healthy job. `read` replaces parts of what the head has read."""
    return {
        "version": 1, "cluster": "prod",
        "job": {
            "id": job, "name": "train", "user": "ann", "group": "h100", "state": "COMPLETED", "reason": "None",
            "nodes": 2, "node_list": "gpu-[0-1]", "elapsed_s": 3700, "restarts": 1, "exit_code": 0,
            "run_dir": "/shared/jobs/train-1",
        },
        "goodput": None, "bill": None,
        "read": {
            "submitted": {
                "name": "train", "code": "c0de", "usd_per_hour": 196.64, "files": {"train.py": "f11e"},
                "arguments": {"launcher": "torchrun", "args": "--preset 13b --lr 3e-4", "nodes": "2"},
                "environment": {"environment": "torch", "lock": "aaaa"},
                "placement": {"nodes": "2", "ranks per node": "8", "GPUs per node": "8", "scheduler": "slurm"},
            },
            "snapshot": {"commit": "4f2a9c1", "modified": True, "untracked": 0, "changed": ["train.py"], "diff": "d1"},
            "environment": "/shared/envs/torch-aaaa",
            "events": [f"{START} start 0 gpu-[0-1]", f"{START + 3700} end 0"],
            "messages": ["job 7, start 0, on gpu-[0-1]"],
            "metrics": copy.deepcopy(metrics()),
            "nodes": [node("gpu-0", 0), node("gpu-1", 1)],
            "nccl": {name: {"version": "2.28.9+cuda13.0", "network": "IBext_v10"} for name in ("gpu-0", "gpu-1")},
            "busbw": [{"nodes": ["gpu-0", "gpu-1"], "busbw": 372.5, "floor": 340.0,
                       "algorithm": "NVLSTREE, SIMPLE"}],
            **read,
        },
    }  # fmt: skip


def throttled(job: int = 12, **read: Any) -> dict[str, Any]:
    """Return the document of a job with a restart. GPU 3 of gpu-2 has throttled, and ranks 11 to 13 were slow."""
    found = document(
        job,
        events=[
            f"{START - 900} start 0 gpu-[0-1]", f"{START - 300} failed 1 gpu-1",
            f"{START - 300} fault gpu-1 {START - 310} TY:gpu-xid: Xid 79 on GPU 4",
            f"{START - 299} requeue failure 1 of at most 2", f"{START} start 1 gpu-0,gpu-2", f"{START + 3700} end 0",
        ],
        nodes=[node("gpu-0", 0), node("gpu-2", 1, clock=1215, reasons=0x40)],
        **{"metrics": metrics(slow=(11, 12, 13), step_ms=250.0), **read},
    )  # fmt: skip
    return copy.deepcopy({**found, "goodput": GOODPUT, "bill": BILL})
