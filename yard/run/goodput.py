"""Measures goodput: the time spent on useful steps, divided by the wall time from a job's first start to its end.

yard runs this file on the head, and a job with checkpoints runs it at its end. It needs Python 3.10 or newer.
`goodput.py JOB=RUN_DIR...` prints each job's goodput as JSON, and `goodput.py --line JOB=RUN_DIR` prints a line for the
job's log. `goodput.py --ratio JOB=RUN_DIR` prints only the ratio, without Slurm's accounting, which nodes cannot read.

A program records its steps in metrics.jsonl in its checkpoint folder, as train.py does. Each line is an object with the
keys `step` (the number of completed steps), `steps` (the number of steps that the line describes), `step_ms` (the
duration of one step), `time` (seconds since 1970) and, after a checkpoint, `checkpoint_s`. If a later start repeats a
step, only the repetition counts as useful.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Span:
    """One start of a job. `begin` and `end` are in seconds since 1970."""

    begin: float
    end: float


@dataclass(frozen=True)
class Steps:
    """The steps that a line of metrics.jsonl describes. All times are in seconds."""

    first: int
    last: int
    seconds: float
    saving: float
    time: float


@dataclass(frozen=True)
class Goodput:
    """A job's goodput as a fraction, and the seconds that the job spent on useful steps and on other work.

    The lost time is divided into the time between starts (`waiting_s`), steps that a later start repeated (`redone_s`),
    checkpoints (`saving_s`), and everything else, such as start-up (`other_s`). `steps` and `redone_steps` are the
    numbers of useful and of repeated steps.
    """

    goodput: float
    wall_s: float
    useful_s: float
    lost_s: float
    waiting_s: float
    redone_s: float
    saving_s: float
    other_s: float
    starts: int
    steps: int
    redone_steps: int

    @property
    def line(self) -> str:
        """The summary that is appended to the job's log."""
        return (
            f"goodput {self.goodput:.0%}: {self.useful_s:.0f} s of useful steps in {self.wall_s:.0f} s; lost "
            f"{self.lost_s:.0f} s: {self.waiting_s:.0f} s between starts, {self.redone_s:.0f} s for repeated steps, "
            f"{self.saving_s:.0f} s for checkpoints, {self.other_s:.0f} s for start-up and other work"
        )


def parse_starts(text: str, job: str, now: float) -> list[Span]:
    """Parse the output of `sacct -X -D -n -P -o JobIDRaw,Start,End` with times in seconds since 1970.

    Each start of a job has its own row, because a requeue resets the submit time, which is part of the row's key
    (sacct(1), "Submit", and accounting_storage_mysql.c, "unique index (id_job, time_submit)"). The start is "None" or
    "Unknown" for a job that has not started, and the end is "Unknown" for a running job (_make_time_str_internal in
    common/parse_time.c). Sources: SchedMD/slurm at 21.08.5, 22.05.8, 23.11.4 and 24.11.5, read 2026-11-22. If `job` is
    a job array, sacct also prints the array's other jobs.
    """
    rows = re.findall(rf"(?m)^{job}\|(\d+)\|(\w+)$", text)
    spans = [Span(float(begin), float(end) if end.isdigit() else now) for begin, end in rows]
    return sorted(spans, key=lambda span: span.begin)


def parse_events(lines: Iterable[str], now: float) -> list[Span]:
    """Return the starts since the last `yard resume` from the lines of a job's file `events`."""
    spans: list[Span] = []
    begin: float | None = None
    for line in lines:
        when, event, *_ = (*line.split(), "", "")
        if event == "resume":
            spans, begin = [], None
        elif event in {"start", "requeue", "end"} and begin is not None:
            spans.append(Span(begin, float(when)))
            begin = None
        if event == "start":
            begin = float(when)
    return spans if begin is None else [*spans, Span(begin, now)]


def parse_metrics(lines: Iterable[str]) -> Iterator[Steps]:
    """Yield the steps in metrics.jsonl. Lines that are damaged or lack a key are skipped."""
    for line in lines:
        try:
            row = json.loads(line)
            last, steps, seconds = int(row["step"]), int(row["steps"]), row["steps"] * row["step_ms"] / 1e3
            yield Steps(last - steps, last, seconds, float(row.get("checkpoint_s", 0.0)), float(row["time"]))
        except (ValueError, KeyError, TypeError, OverflowError):
            continue


def measure(spans: Sequence[Span], steps: Iterable[Steps]) -> Goodput | None:
    """Return a job's goodput, or None if the job has not started or has recorded no steps.

    `spans` must be sorted. Steps of other jobs that use the same folder, for example in a chain, do not count. Steps
    with the same second as the first start do count, because some programs record only whole seconds.
    """
    if not spans:
        return None
    useful: list[Steps] = []
    redone: list[Steps] = []
    for found in steps:
        while useful and useful[-1].last > found.first:
            redone.append(useful.pop())
        useful.append(found)

    def own(all_steps: list[Steps]) -> list[Steps]:
        return [found for found in all_steps if int(spans[0].begin) <= found.time <= spans[-1].end + 1]

    kept, lost = own(useful), own(redone)
    wall = spans[-1].end - spans[0].begin
    if not kept or wall <= 0:
        return None
    useful_s = min(wall, sum(found.seconds for found in kept))
    waiting_s = sum(max(0.0, later.begin - earlier.end) for earlier, later in pairwise(spans))
    redone_s = sum(found.seconds for found in lost)
    saving_s = sum(found.saving for found in (*kept, *lost))
    return Goodput(
        goodput=useful_s / wall,
        wall_s=wall,
        useful_s=useful_s,
        lost_s=wall - useful_s,
        waiting_s=waiting_s,
        redone_s=redone_s,
        saving_s=saving_s,
        other_s=max(0.0, wall - useful_s - waiting_s - redone_s - saving_s),
        starts=len(spans),
        steps=sum(found.last - found.first for found in kept),
        redone_steps=sum(found.last - found.first for found in lost),
    )


def of_job(job: str, run_dir: Path, *, accounted: bool = True) -> Goodput | None:
    """Return the goodput of the job with the run folder `run_dir`, or None if its program records no steps.

    The starts come from Slurm's accounting, or from the job's events if there is none or `accounted` is not set.
    """
    events = _lines(run_dir / "events")
    folder = next((line.split(" ", 2)[2] for line in reversed(events) if line.split(" ")[1:2] == ["saves"]), None)
    metrics = _lines(Path(folder) / METRICS) if folder is not None else []
    if not metrics:
        return None
    now = time.time()
    return measure((_accounted(job, now) if accounted else []) or parse_events(events, now), parse_metrics(metrics))


def _lines(path: Path) -> list[str]:
    try:
        # Reading a pipe would wait for its writer.
        return path.read_text(errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []


def _accounted(job: str, now: float) -> list[Span]:
    """Return the job's starts according to Slurm's accounting, or an empty list without Slurm."""
    command = ["sacct", "-X", "-D", "-n", "-P", "-j", job, "-o", "JobIDRaw,Start,End"]
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_starts(found.stdout, job, now)


def main(arguments: Sequence[str]) -> str:
    jobs = [argument.partition("=") for argument in arguments if not argument.startswith("--")]
    found: dict[str, Goodput | None] = {}
    for job, _, run_dir in jobs:
        found[job] = None
        # The job's owner can change the files, and the goodput of other jobs must be known.
        with suppress(Exception):
            found[job] = of_job(job, Path(run_dir), accounted="--ratio" not in arguments)
    if "--ratio" in arguments:
        return "".join(f"{goodput.goodput:.3f}\n" for goodput in found.values() if goodput is not None)
    if "--line" in arguments:
        return "".join(f"{goodput.line}\n" for goodput in found.values() if goodput is not None)
    rows: dict[str, Any] = {job: goodput and asdict(goodput) for job, goodput in found.items()}
    return json.dumps(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
