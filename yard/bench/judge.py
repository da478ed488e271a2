"""Compares a record with its floor: the published minimum for the number of nodes, or the value of --min."""

from __future__ import annotations

import math

from yard.bench.records import Record
from yard.workloads import allreduce

_COMPARABLE = 1 << 30
"""Minimum message size in bytes for a comparison with a published floor. Smaller messages measure latency."""


def failures(record: Record) -> list[str]:
    """Return a message for each failure, or an empty list if the record passes."""
    return {"nccl": _nccl, "train": _train, "scaling": _scaling}[record.kind](record)


def notes(record: Record) -> list[str]:
    """Return the reasons why a record was not compared with a floor."""
    if record.floor is None:
        return ["no floor is published for this machine type and number of nodes; set one with --min"]
    size = record.rows[-1]["size"] if record.kind == "nccl" else _COMPARABLE
    if size < _COMPARABLE:
        return [f"the largest size, {size} bytes, is too small for the floor of {record.floor:g} GB/s"]
    return []


def _nccl(record: Record) -> list[str]:
    floor = record.floor if record.rows[-1]["size"] >= _COMPARABLE else None
    return [f"{problem}; check the hosts with `yard doctor`" for problem in allreduce.problems(record.rows, floor)]


def _train(record: Record) -> list[str]:
    reached = record.summary.get("hardware_tflops") or 0.0
    found = ["the loss is not a number"] if any(math.isnan(row["loss"]) for row in record.rows) else []
    if record.floor is not None and reached < record.floor:
        found.append(f"{reached:.1f} TFLOPS per rank is below {record.floor:g}")
    return found


def _scaling(record: Record) -> list[str]:
    return [
        f"{row['nodes']} nodes have an efficiency of {row['efficiency']:.2f}, below {record.floor:g}"
        for row in record.rows
        if record.floor is not None and row["efficiency"] < record.floor
    ]
