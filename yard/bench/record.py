"""Benchmark records: saved as one JSON file per run, compared with a floor, printed and plotted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.errors import BenchError
from yard.show import say, say_json, table, warn
from yard.workloads import allreduce

_FORMAT = 1
_MOST_ROWS = 20
"""Number of training steps that are printed. The record contains all steps."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a benchmark.

    `taken`: the time in ISO 8601. `floor`: the lowest passing value in GB/s (nccl), TFLOPS per rank (train) or
    efficiency (scaling), or None if no floor is published. `rows`: one row for each message size, training step or
    number of nodes.
    """

    kind: str
    cluster: str
    group: str
    gpu_type: str | None
    nodes: int
    ranks: int
    taken: str
    floor: float | None
    rows: list[dict[str, Any]]
    summary: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Title for charts and plots."""
        benchmark = {"nccl": "All-reduce", "train": "Training", "scaling": "Weak scaling"}[self.kind]
        size = f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.ranks} ranks"
        return f"{benchmark}: {self.cluster}, group {self.group} ({self.gpu_type or 'no GPU'}), {size}"


_NEEDED = {
    "nccl": ("size", "time_us", "algbw", "busbw", "wrong"),
    "train": ("step", "loss", "step_ms", "tokens_per_s"),
    "scaling": ("nodes", "ranks", "tokens_per_s", "efficiency"),
}


def save(record: Record, path: Path) -> None:
    """Write the record to a file. Raises BenchError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}). Fix: use another folder with --out") from error


def load(path: Path, kind: str, least: float | None) -> Record:
    """Read a record from a file. `least` replaces its floor. Raises BenchError if the file is damaged or
    contains a record of another kind.
    """
    again = "Fix: run the benchmark again"
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}). Fix: use a file that `yard bench --out` wrote") from error
    if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
        raise BenchError(f"{path} is not a record of this version. Fix: use a file that `yard bench --out` wrote")
    try:
        record = Record(**raw)
        missing = [key for row in record.rows for key in _NEEDED[record.kind] if key not in row]
    except (TypeError, KeyError) as error:
        raise BenchError(f"{path} is damaged ({error}). {again}") from error
    if missing or not record.rows:
        raise BenchError(f"{path} is damaged ({missing[0] if missing else 'rows'} missing). {again}")
    if record.kind != kind:
        raise BenchError(f"{path} is a record of {record.kind}. Fix: use `yard bench {record.kind} --from`")
    return record if least is None else replace(record, floor=least)


_COMPARABLE = 1 << 30
"""Minimum message size in bytes for a comparison with a published floor. Smaller messages measure latency."""


def failures(record: Record) -> list[str]:
    """Return a message for each failure, or an empty list if the record passes."""
    return {"nccl": _judge_nccl, "train": _judge_train, "scaling": _judge_scaling}[record.kind](record)


def notes(record: Record) -> list[str]:
    """Return the reasons why a record was not compared with a floor."""
    if record.floor is None:
        return ["no floor is published for this machine type and number of nodes; set one with --min"]
    size = record.rows[-1]["size"] if record.kind == "nccl" else _COMPARABLE
    if size < _COMPARABLE:
        return [f"the largest size, {size} bytes, is too small for the floor of {record.floor:g} GB/s"]
    return []


def _judge_nccl(record: Record) -> list[str]:
    floor = record.floor if record.rows[-1]["size"] >= _COMPARABLE else None
    return [f"{problem}; check the hosts with `yard doctor`" for problem in allreduce.problems(record.rows, floor)]


def _judge_train(record: Record) -> list[str]:
    reached = record.summary.get("hardware_tflops") or 0.0
    found = ["the loss is not a number"] if any(math.isnan(row["loss"]) for row in record.rows) else []
    if record.floor is not None and reached < record.floor:
        found.append(f"{reached:.1f} TFLOPS per rank is below {record.floor:g}")
    return found


def _judge_scaling(record: Record) -> list[str]:
    return [
        f"{row['nodes']} nodes have an efficiency of {row['efficiency']:.2f}, below {record.floor:g}"
        for row in record.rows
        if record.floor is not None and row["efficiency"] < record.floor
    ]


def show(record: Record, kept: Path | None, out: Path | None, as_json: bool) -> int:
    """Print a record and write files to the folder `out`. `kept`: the file from which the record was read, or None.

    Returns the exit code, which is 1 if the record contains a failure. Raises BenchError if a file cannot be written.
    """
    failed = failures(record)
    files = [] if out is None else _write(record, kept, out)
    if as_json:
        say_json({**asdict(record), "passed": not failed, "trouble": failed, "files": [str(path) for path in files]})
        return 1 if failed else 0
    say(record.title)
    table(*_table(record))
    for note in notes(record):
        say(f"note: {note}")
    for path in files:
        say(f"written: {path}")
    for line in failed:
        warn(f"yard: FAILED: {line}")
    if not failed:
        say("passed")
    return 1 if failed else 0


def _write(record: Record, kept: Path | None, out: Path) -> list[Path]:
    """Write the plot, and the record if it is new. Returns the written files."""
    stamp = record.taken.replace(":", "").replace("+0000", "Z")
    name = kept.stem if kept else f"{record.kind}-{record.cluster}-{stamp}"
    written = []
    if not kept:
        written.append(out / f"{name}.json")
        save(record, written[0])
    out.mkdir(parents=True, exist_ok=True)
    if _draw(record, out / f"{name}.png"):
        return [*written, out / f"{name}.png"]
    warn("yard: no plot was written, because matplotlib is not installed. Fix: pip install 'trainyard[plots]'")
    return written


_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def size_name(size: int) -> str:
    """Return a number of bytes as text, with a binary unit if the number is a multiple of 1024: 16M, 8G, 12."""
    return next((f"{size // scale}{unit}" for scale, unit in _UNITS if size >= scale and size % scale == 0), str(size))


def _table(record: Record) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the columns and rows that are printed."""
    if record.kind == "nccl":
        rows = [(size_name(row["size"]), f"{row['time_us']:.1f}", f"{row['busbw']:.2f}") for row in record.rows]
        return ("SIZE", "TIME, us", "BUSBW, GB/s"), list(rows)
    if record.kind == "train":
        some = record.rows[:: -(-len(record.rows) // _MOST_ROWS)]
        return ("STEP", "TOKENS/S", "LOSS"), [
            (str(row["step"]), f"{row['tokens_per_s']:.0f}", f"{row['loss']:.3f}") for row in some
        ]
    return ("NODES", "TOKENS/S", "EFFICIENCY"), [
        (str(row["nodes"]), f"{row['tokens_per_s']:.0f}", f"{row['efficiency']:.3f}") for row in record.rows
    ]


INK, SOFT, MAIN, SECOND, ALARM = "#222222", "#999999", "#1f5fa8", "#c8741c", "#b3261e"


def _draw(record: Record, path: Path) -> bool:
    """Write the plot of a record. Returns False if matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  (optional and slow)
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8.5, 4.6), dpi=130)
    {"nccl": _plot_nccl, "train": _plot_train, "scaling": _plot_scaling}[record.kind](record, axes)
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


def _plot_nccl(record: Record, axes: Any) -> None:
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


def _plot_train(record: Record, axes: Any) -> None:
    steps = [row["step"] for row in record.rows]
    axes.plot(steps, [row["tokens_per_s"] for row in record.rows], color=MAIN)
    axes.set_xlabel("step")
    axes.set_ylabel("tokens/s", color=MAIN)
    axes.set_ylim(bottom=0)
    losses = axes.twinx()
    losses.plot(steps, [row["loss"] for row in record.rows], color=SECOND)
    losses.set_ylabel("loss", color=SECOND)
    losses.spines["top"].set_visible(False)


def _plot_scaling(record: Record, axes: Any) -> None:
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
