"""Compares a record with its floor: the published one for that number of nodes, or that of --min. Pure."""

from __future__ import annotations

from jobs.bench.records import Record

_COMPARABLE = 1 << 30
"""Bytes from which a bus bandwidth may be compared with a published one: smaller messages measure latency."""


def trouble(record: Record) -> list[str]:
    """Return what fails, with figures; an empty list is a pass."""
    return {"nccl": _nccl, "train": _train, "scaling": _scaling}[record.kind](record)


def remarks(record: Record) -> list[str]:
    """Return what should be known beside the verdict."""
    if record.kind == "nccl" and record.floor is not None and record.rows[-1]["size"] < _COMPARABLE:
        return [
            f"the largest size, {record.rows[-1]['size']} bytes, is too small to be judged by {record.floor:g} GB/s"
        ]
    if record.floor is None:
        return ["no floor is published for this machine and number of nodes, so only errors fail; --min sets one"]
    return []


def _nccl(record: Record) -> list[str]:
    wrong = sum(row["wrong"] for row in record.rows)
    found = [f"{wrong} elements came out wrong: a link or a GPU corrupts data"] if wrong else []
    last = record.rows[-1]
    if record.floor is not None and last["size"] >= _COMPARABLE and last["busbw"] < record.floor:
        found.append(
            f"busbw {last['busbw']:.2f} GB/s at {last['size']} bytes is below {record.floor:g} GB/s; "
            "`yard doctor` looks at the links"
        )
    return found


def _train(record: Record) -> list[str]:
    reached = record.summary.get("hardware_tflops")
    losses = [row["loss"] for row in record.rows]
    found = [] if all(loss == loss for loss in losses) else ["the loss is not a number"]  # noqa: PLR0124  (NaN)
    if record.floor is not None and (reached is None or reached < record.floor):
        found.append(f"{reached or 0:.1f} TFLOPS a rank are below {record.floor:g}")
    return found


def _scaling(record: Record) -> list[str]:
    if record.floor is None:
        return []
    return [
        f"{row['nodes']} nodes reach {row['efficiency']:.2f} of {row['nodes']} times one node, below {record.floor:g}"
        for row in record.rows
        if row["efficiency"] < record.floor
    ]
