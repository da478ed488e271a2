"""Renders a record as a bar chart for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from yard.bench.records import Record

_WIDTH = 48
_MOST_ROWS = 40
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def bars(record: Record) -> list[str]:
    """Return the lines of the chart, with title and legend."""
    heading, points = {"nccl": _nccl, "train": _train, "scaling": _scaling}[record.kind](record)
    floor = record.floor if record.kind != "train" else None
    legend = [f"{'':>10}  | = floor of {floor:g}"] if floor is not None else []
    return [record.title, heading, *_plot(points, floor), *legend]


def size_name(size: int) -> str:
    """Return a number of bytes as text, with a binary unit if the number is a multiple of 1024: 16M, 8G, 12."""
    return next((f"{size // scale}{unit}" for scale, unit in _UNITS if size >= scale and size % scale == 0), str(size))


Point = tuple[str, float, str]
"""Label, value and text of a bar."""


def _nccl(record: Record) -> tuple[str, list[Point]]:
    points = []
    for row in record.rows:
        decimals = 1 if row["busbw"] >= 10 else 3  # noqa: PLR2004
        points.append((size_name(row["size"]), row["busbw"], f"{row['busbw']:.{decimals}f}"))
    return f"{'size':>10}  busbw, GB/s", points


def _train(record: Record) -> tuple[str, list[Point]]:
    rows = record.rows[:: -(-len(record.rows) // _MOST_ROWS)]
    texts = (f"{row['tokens_per_s']:.0f}  loss {row['loss']:.3f}" for row in rows)
    points = [(str(row["step"]), row["tokens_per_s"], text) for row, text in zip(rows, texts, strict=True)]
    return f"{'step':>10}  tokens/s", points


def _scaling(record: Record) -> tuple[str, list[Point]]:
    texts = (f"{row['efficiency']:.3f}  {row['tokens_per_s']:.0f} tokens/s" for row in record.rows)
    points = [(str(row["nodes"]), row["efficiency"], text) for row, text in zip(record.rows, texts, strict=True)]
    return f"{'nodes':>10}  efficiency: tokens/s, relative to linear scaling from one node", points


def _plot(points: Sequence[Point], floor: float | None) -> list[str]:
    most = max([*(value for _, value, _ in points), floor or 0.0]) or 1.0
    lines = []
    for label, value, text in points:
        cells = list(("█" * round(value / most * _WIDTH)).ljust(_WIDTH + 1))
        if floor is not None:
            cells[round(floor / most * _WIDTH)] = "|"
        lines.append(f"{label:>10}  {''.join(cells)} {text}")
    return lines
