"""`yard bench`: measure or read, judge, show, keep."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.bench.judge import remarks, trouble
from jobs.bench.picture import draw
from jobs.bench.records import Record, load, save
from jobs.bench.terminal import bars
from jobs.show import say, say_json

_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to do with a record. `kept` is one to read instead of measuring; `out` the folder for files."""

    kind: str
    kept: Path | None
    out: Path | None
    least: float | None
    as_json: bool


def run_bench(order: Order, measure: Callable[[], Record]) -> int:
    """Show a measured or kept record and keep it. Returns the exit code: 1 when it fails. Raises BenchError."""
    record = load(order.kept, order.kind) if order.kept else measure()
    if order.kept and order.least is not None:
        record = Record(**{**record.__dict__, "floor": order.least})
    failed = trouble(record)
    files = _keep(record, order)
    if order.as_json:
        say_json({**asdict(record), "passed": not failed, "trouble": failed, "files": [str(path) for path in files]})
        return _FAILED if failed else 0
    say("\n".join(bars(record)))
    for remark in remarks(record):
        say(f"note: {remark}")
    for path in files:
        say(f"written: {path}")
    for line in failed:
        sys.stderr.write(f"yard: FAILED: {line}\n")
    if not failed:
        say("passed")
    return _FAILED if failed else 0


def _keep(record: Record, order: Order) -> list[Path]:
    """Write the record, unless it came from a file, and its picture."""
    if order.out is None:
        return []
    stamp = record.taken.replace(":", "").replace("+0000", "Z")
    base = order.out / (order.kept.stem if order.kept else f"{record.kind}-{record.cluster}-{stamp}")
    written = []
    if not order.kept:
        save(record, base.with_name(f"{base.name}.json"))
        written.append(base.with_name(f"{base.name}.json"))
    order.out.mkdir(parents=True, exist_ok=True)
    picture = base.with_name(f"{base.name}.png")
    if draw(record, picture):
        return [*written, picture]
    sys.stderr.write("yard: no picture: matplotlib is not installed here; pip install 'trainyard[plots]'\n")
    return written
