"""`yard bench`: prints the record of a benchmark and writes files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from yard.bench.judge import failures, notes
from yard.bench.picture import draw
from yard.bench.records import Record, save
from yard.bench.terminal import bars
from yard.show import say, say_json, warn


def show(record: Record, kept: Path | None, out: Path | None, as_json: bool) -> int:
    """Print a record and write files to the folder `out`. `kept`: the file from which the record was read, or None.

    Returns the exit code, which is 1 if the record contains a failure. Raises BenchError if a file cannot be written.
    """
    failed = failures(record)
    files = [] if out is None else _write(record, kept, out)
    if as_json:
        say_json({**asdict(record), "passed": not failed, "trouble": failed, "files": [str(path) for path in files]})
        return 1 if failed else 0
    say("\n".join(bars(record)))
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
    if draw(record, out / f"{name}.png"):
        return [*written, out / f"{name}.png"]
    warn("yard: no plot was written, because matplotlib is not installed. Fix: pip install 'trainyard[plots]'")
    return written
