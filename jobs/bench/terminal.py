"""A record as text: a table's worth of bars, with the floor marked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.bench.records import Record

_WIDTH = 48
_MOST_ROWS = 40
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def bars(record: Record) -> list[str]:
    """Return the lines of the plot, title and legend included."""
    label, unit, points = {"nccl": _nccl, "train": _train, "scaling": _scaling}[record.kind](record)
    floor = record.floor if record.kind != "train" else None
    lines = [record.title, f"{label:>10}  {unit}"]
    lines += _plot(points, floor)
    if floor is not None:
        lines.append(f"{'':>10}  | marks the floor of {floor:g}")
    return lines


def size_name(size: int) -> str:
    """Return bytes as people write them: 16M, 8G, 12."""
    return next((f"{size // scale}{unit}" for scale, unit in _UNITS if size >= scale and size % scale == 0), str(size))


Point = tuple[str, float, str]
"""A label, the length of the bar, and what is said of it."""


def _nccl(record: Record) -> tuple[str, str, list[Point]]:
    points = [(size_name(row["size"]), row["busbw"], _figure(row["busbw"])) for row in record.rows]
    return "size", "busbw, GB/s", points


def _train(record: Record) -> tuple[str, str, list[Point]]:
    every = -(-len(record.rows) // _MOST_ROWS)
    rows = record.rows[::every]
    points = [
        (str(row["step"]), row["tokens_per_s"], f"{row['tokens_per_s']:.0f}  loss {row['loss']:.3f}") for row in rows
    ]
    return "step", "tokens/s", points


def _scaling(record: Record) -> tuple[str, str, list[Point]]:
    points = [
        (str(row["nodes"]), row["efficiency"], f"{row['efficiency']:.3f}  {row['tokens_per_s']:.0f} tokens/s")
        for row in record.rows
    ]
    return "nodes", "efficiency: tokens/s over as many times one node's", points


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"  # noqa: PLR2004  (three digits either way)


def _plot(points: Sequence[Point], floor: float | None) -> list[str]:
    most = max([*(value for _, value, _ in points), floor or 0.0]) or 1.0
    mark = round(floor / most * _WIDTH) if floor is not None else None
    lines = []
    for label, value, said in points:
        cells = ["█" if at < round(value / most * _WIDTH) else " " for at in range(_WIDTH + 1)]
        if mark is not None:
            cells[mark] = "|"
        lines.append(f"{label:>10}  {''.join(cells)} {said}")
    return lines
