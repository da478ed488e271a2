"""Goodput: the useful part of a job's time, computed from its starts and steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.yard.conftest import LocalHead, MakeProgram
from trainyard.outputs import Cluster
from yard.run import goodput, jobs
from yard.run.goodput import Goodput, Span, measure, parse_events, parse_metrics, parse_starts
from yard.run.queue import parse_scontrol

STARTS = """\
5|1000|1030
5|1050|Unknown
6|2000|2010
7|None|Unknown
8|Unknown|Unknown
"""
EVENTS = ["1000 saves /c", "1000 start 0 a", "1010 failed 1 a", "1012 requeue x", "1020 start 1 a", "1040 end 0"]


def step(number: int, when: float, **more: float) -> str:
    return json.dumps({"step": number, "steps": 1, "step_ms": 2000, "time": when, **more})


def measured(spans: list[Span], *lines: str) -> Goodput:
    found = measure(spans, parse_metrics(lines))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("job", "spans"), [("5", [Span(1000, 1030), Span(1050, 1100)]), ("7", []), ("8", []), ("9", [])]
)
def test_each_start_in_the_accounting_is_a_span(job: str, spans: list[Span]) -> None:
    assert parse_starts(STARTS, job, 1100) == spans


def test_events_give_the_starts_without_slurm() -> None:
    assert parse_events(EVENTS, 2000) == [Span(1000, 1012), Span(1020, 1040)]
    assert parse_events([*EVENTS, "1090 resume", "1100 start 2 a"], 1150) == [Span(1100, 1150)]


def test_lost_time_is_divided_by_its_cause() -> None:
    # Steps 1 to 3. The second start repeats step 3, because the last checkpoint was written at step 2.
    lines = [step(1, 1005), step(2, 1010, checkpoint_s=1.5), step(3, 1013), step(3, 1060), step(4, 1064)]
    found = measured([Span(1000, 1030), Span(1050, 1070)], *lines)
    assert (found.wall_s, found.useful_s, found.lost_s, found.starts) == (70, 8, 62, 2)
    assert (found.waiting_s, found.redone_s, found.saving_s) == (20, 2, 1.5)
    assert found.other_s == pytest.approx(62 - 20 - 2 - 1.5)
    assert measure([Span(1000, 1010)], []) is None
    assert measure([], parse_metrics(lines)) is None
    assert found.line.startswith("goodput 11%: 8 s of useful steps in 70 s; lost 62 s: 20 s between starts, 2 s for")


@pytest.mark.parametrize(
    ("begin", "lines", "useful_s"),
    [(1000, [step(1, 500), step(2, 1005)], 2), (1000.6, [step(1, 1000)], 2), (1000, [step(5, 1010, steps=5)], 10)],
    ids=["step of an earlier job", "whole second of the first start", "several steps in a line"],
)
def test_own_steps_are_useful(begin: float, lines: list[str], useful_s: float) -> None:
    assert measured([Span(begin, 1020)], *lines).useful_s == useful_s


@pytest.mark.parametrize("line", ['{"step": 1, "st', '{"step": 3, "loss": 1.0}', "[]", '{"step": "x", "steps": 1}'])
def test_damaged_lines_are_skipped(line: str) -> None:
    assert list(parse_metrics([line])) == []


def test_program_reads_the_accounting_and_the_steps(tmp_path: Path, program: MakeProgram) -> None:
    calls = program("sacct", "[[ $SLURM_TIME_FORMAT == %s ]] && echo '5|1000|1030'")
    (tmp_path / "metrics.jsonl").write_text(step(1, 1005) + "\n")
    (tmp_path / "events").write_text(f"1000 saves {tmp_path}\n1000 start 0 a\n")
    found = goodput.main(["--line", f"5={tmp_path}", f"6={tmp_path / 'none'}"])
    assert found.startswith("goodput 7%: 2 s of useful steps in 30 s; lost 28 s: 0 s between starts, 0 s for ")
    assert calls.calls == ["-X -D -n -P -j 5 -o JobIDRaw,Start,End"]


@pytest.mark.parametrize(
    "damage",
    [
        '{"step": 20, "steps": 10, "step_ms": 1000, "time": 60, "checkpoint_s": "x"}',
        '{"step": 20, "steps": 10, "step_ms": 1000, "time": "x"}',
        '{"step": Infinity, "steps": 10, "step_ms": 1000, "time": 60}',
    ],
)
def test_damaged_steps_do_not_hide_the_goodput(tmp_path: Path, damage: str) -> None:
    step = json.dumps({"step": 10, "steps": 10, "step_ms": 1000, "time": 50})
    (tmp_path / "metrics.jsonl").write_text(f"{step}\n{damage}\n")
    (tmp_path / "events").write_text(f"1 saves {tmp_path}\n1 start 0 n\n101 end 0\n")
    assert json.loads(goodput.main([f"5={tmp_path}"]))["5"]["goodput"] == 0.1


def test_damaged_files_of_a_job_do_not_hide_other_goodputs(tmp_path: Path) -> None:
    for name, begin in (("good", "1"), ("bad", "x"), ("pipe", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events").write_text(f"1 saves {tmp_path / name}\n{begin} start 0 n\n101 end 0\n")
        if name != "pipe":
            step = json.dumps({"step": 10, "steps": 10, "step_ms": 1000, "time": 50})
            (tmp_path / name / "metrics.jsonl").write_text(f"{step}\n")
    os.mkfifo(tmp_path / "pipe" / "metrics.jsonl")
    words = [f"{number}={tmp_path / name}" for number, name in enumerate(("bad", "pipe", "good"))]
    program = Path(goodput.__file__).read_bytes()
    done = subprocess.run([sys.executable, "-", *words], input=program, capture_output=True, check=False, timeout=10)
    found = json.loads(done.stdout)
    assert (found["0"], found["1"], found["2"]["goodput"]) == (None, None, 0.1)


def test_list_shows_goodput_and_lost_time(
    tmp_path: Path, local: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "jobs" / "x-1"
    run.mkdir(parents=True)
    (run / "events").write_text(f"1000 saves {run}\n1000 start 0 a\n1040 end 0\n")
    (run / "metrics.jsonl").write_text(step(1, 1005, step_ms=30_000) + "\n")
    record = "JobId={} JobName=x UserId=t(1) JobState=COMPLETED WorkDir={}\n"
    found = parse_scontrol(record.format(5, run) + record.format(6, "/home/x"))
    monkeypatch.setattr(jobs, "scheduler_of", lambda _: SimpleNamespace(recent=lambda *_: found))
    remote: Any = LocalHead(replace(local, shared_path=str(tmp_path), scheduler="none"))
    jobs.list_jobs(remote, 1, as_json=False, long=True)
    head, first, second = capsys.readouterr().out.splitlines()
    assert "GOODPUT  LOST" in head
    assert "75%      10 s" in first
    assert "%" not in second
    jobs.list_jobs(remote, 1, as_json=True, long=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["goodput"] and row["goodput"]["lost_s"] for row in rows] == [10, None]
