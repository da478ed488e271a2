"""Plots a record as a PNG with matplotlib, which the extra `trainyard[plots]` installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yard.bench.records import Record
from yard.bench.terminal import size_name

INK, SOFT, MAIN, SECOND, ALARM = "#222222", "#999999", "#1f5fa8", "#c8741c", "#b3261e"


def draw(record: Record, path: Path) -> bool:
    """Write the plot of a record. Returns False if matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  (optional and slow)
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8.5, 4.6), dpi=130)
    {"nccl": _nccl, "train": _train, "scaling": _scaling}[record.kind](record, axes)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(record.title, loc="left", fontsize=11, color=INK)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    reached = record.summary.get("hardware_tflops")
    footer = [record.taken, *([f"{reached:.4g} TFLOPS per rank"] if reached is not None else [])]
    figure.text(0.99, 0.015, ", ".join(footer), ha="right", fontsize=8, color=SOFT)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return True


def _nccl(record: Record, axes: Any) -> None:
    sizes = [row["size"] for row in record.rows]
    rates = [row["busbw"] for row in record.rows]
    axes.plot(range(len(sizes)), rates, marker="o", markersize=4, color=MAIN, label="measured, in place")
    step = -(-len(sizes) // 12)
    axes.set_xticks(range(len(sizes))[::step], [size_name(size) for size in sizes[::step]])
    top = max([*rates, record.floor or 0]) * 1.12
    axes.set(xlabel="buffer size per rank in bytes", ylabel="bus bandwidth, GB/s", ylim=(0, top))
    axes.annotate(f"{rates[-1]:.1f}", (len(sizes) - 1, rates[-1]), (0, 7), textcoords="offset points", ha="center")
    if record.floor is not None:
        axes.axhline(record.floor, color=ALARM, linestyle="--", linewidth=1.2, label=f"floor {record.floor:g} GB/s")
    axes.legend(frameon=False, loc="lower right")


def _train(record: Record, axes: Any) -> None:
    steps = [row["step"] for row in record.rows]
    axes.plot(steps, [row["tokens_per_s"] for row in record.rows], color=MAIN)
    axes.set_xlabel("step")
    axes.set_ylabel("tokens/s", color=MAIN)
    axes.set_ylim(bottom=0)
    losses = axes.twinx()
    losses.plot(steps, [row["loss"] for row in record.rows], color=SECOND)
    losses.set_ylabel("loss", color=SECOND)
    losses.spines["top"].set_visible(False)


def _scaling(record: Record, axes: Any) -> None:
    ranks = [row["ranks"] for row in record.rows]
    rates = [row["tokens_per_s"] for row in record.rows]
    ideal = [rates[0] / ranks[0] * count for count in ranks]
    axes.plot(ranks, ideal, color=SOFT, linestyle="--", linewidth=1.2, label="linear scaling")
    axes.plot(ranks, rates, marker="o", markersize=5, color=MAIN, label="measured")
    if record.floor is not None:
        floor = [record.floor * rate for rate in ideal]
        axes.plot(ranks, floor, color=ALARM, linestyle=":", linewidth=1.2, label=f"floor {record.floor:g}")
    for row, rank, rate in zip(record.rows, ranks, rates, strict=True):
        label = f"{row['efficiency'] * 100:.1f} %"
        axes.annotate(label, (rank, rate), (6, -13), textcoords="offset points", fontsize=9, color=INK)
    right = ranks[-1] + 0.08 * (ranks[-1] - ranks[0] or 1)
    axes.set(xlabel="ranks", ylabel="tokens/s", xticks=ranks, xlim=(None, right), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
