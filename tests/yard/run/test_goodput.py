"""Goodput of jobs. The sacct rows are based on the sources cited in parse_sacct, not recorded on a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.yard.conftest import MakeProgram
from yard.run import goodput, jobs
from yard.run.goodput import Span, measure, parse_events, parse_metrics, parse_sacct
from yard.run.queue import Job

SACCT = """\
5|1000|1030
5|1050|Unknown
6|2000|2010
7|None|Unknown
8|Unknown|Unknown
"""
EVENTS = ["1000 saves /c", "1000 start 0 a", "1010 failed 1 a", "1012 requeue x", "1020 start 1 a", "1040 end 0"]


def step(number: int, when: float, **more: float) -> str:
    return json.dumps({"step": number, "steps": 1, "step_ms": 2000, "time": when, **more})


def test_each_start_in_the_accounting_is_a_span() -> None:
    assert parse_sacct(SACCT, "5", 1100) == [Span(1000, 1030), Span(1050, 1100)]


@pytest.mark.parametrize("job", ["7", "8", "9"])
def test_job_without_a_start_has_no_span(job: str) -> None:
    assert parse_sacct(SACCT, job, 1100) == []


def test_events_give_the_starts_without_slurm() -> None:
    assert parse_events(EVENTS, 2000) == [Span(1000, 1012), Span(1020, 1040)]
    assert parse_events([*EVENTS, "1090 resume", "1100 start 2 a"], 1150) == [Span(1100, 1150)]


def test_lost_time_is_divided_by_its_cause() -> None:
    # Steps 1 to 3. The second start repeats step 3, because the last checkpoint was written at step 2.
    lines = [step(1, 1005), step(2, 1010, checkpoint_s=1.5), step(3, 1013), step(3, 1060), step(4, 1064)]
    found = measure([Span(1000, 1030), Span(1050, 1070)], parse_metrics(lines))
    assert found is not None
    assert (found.wall_s, found.useful_s, found.lost_s, found.starts) == (70, 8, 62, 2)
    assert (found.waiting_s, found.redone_s, found.saving_s) == (20, 2, 1.5)
    assert found.other_s == pytest.approx(62 - 20 - 2 - 1.5)
    assert found.line.startswith("goodput 11%: 8 s of useful steps in 70 s; lost 62 s: 20 s between starts, 2 s for")


def test_steps_of_an_earlier_job_are_not_counted() -> None:
    found = measure([Span(1000, 1010)], parse_metrics([step(1, 500), step(2, 1005)]))
    assert found is not None
    assert found.useful_s == 2


def test_a_whole_second_of_the_first_start_is_counted() -> None:
    found = measure([Span(1000.6, 1010)], parse_metrics([step(1, 1000)]))
    assert found is not None


def test_a_line_can_describe_several_steps() -> None:
    found = measure([Span(1000, 1020)], parse_metrics([step(5, 1010, steps=5)]))
    assert found is not None
    assert found.useful_s == 10


@pytest.mark.parametrize("line", ['{"step": 1, "st', '{"step": 3, "loss": 1.0}', "[]", '{"step": "x", "steps": 1}'])
def test_damaged_lines_are_skipped(line: str) -> None:
    assert list(parse_metrics([line])) == []


def test_job_without_steps_has_no_goodput() -> None:
    assert measure([Span(1000, 1010)], []) is None
    assert measure([], parse_metrics([step(1, 1005)])) is None


def test_program_reads_the_accounting_and_the_steps(tmp_path: Path, program: MakeProgram) -> None:
    calls = program("sacct", "[[ $SLURM_TIME_FORMAT == %s ]] && echo '5|1000|1030'")
    (tmp_path / "metrics.jsonl").write_text(step(1, 1005) + "\n")
    (tmp_path / "events").write_text(f"1000 saves {tmp_path}\n1000 start 0 a\n")
    found = goodput.main(["--line", f"5={tmp_path}", f"6={tmp_path / 'none'}"])
    assert found == (
        "goodput 7%: 2 s of useful steps in 30 s; lost 28 s: 0 s between starts, 0 s for repeated steps, "
        "0 s for checkpoints, 28 s for start-up and other work\n"
    )
    assert calls.calls == ["-X -D -n -P -j 5 -o JobIDRaw,Start,End"]


def test_list_shows_goodput_and_lost_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "jobs" / "x-1"
    run.mkdir(parents=True)
    (run / "events").write_text(f"1000 saves {run}\n1000 start 0 a\n1040 end 0\n")
    (run / "metrics.jsonl").write_text(step(1, 1005, step_ms=30_000) + "\n")
    rows: list[Mapping[str, Any]] = [{"id": 5, "run_dir": str(run)}, {"id": 6, "run_dir": "/home/x"}]
    found = [
        Job(
            name="x", user="ops", group="gpu", state="COMPLETED", reason="None", nodes=1, node_list="a", elapsed_s=1,
            restarts=0, exit_code=0, **row,
        )
        for row in rows
    ]  # fmt: skip
    monkeypatch.setattr(jobs, "scheduler_of", lambda _: SimpleNamespace(recent=lambda *_: found))

    def run_here(line: str, stdin: bytes = b"") -> str:
        return subprocess.run(["bash", "-c", line], input=stdin, check=True, capture_output=True).stdout.decode()

    cluster = SimpleNamespace(shared_path=str(tmp_path), scheduler="none")
    remote: Any = SimpleNamespace(run=run_here, stack=SimpleNamespace(cluster=cluster))
    jobs.list_jobs(remote, 1, as_json=False, long=True)
    head, first, second = capsys.readouterr().out.splitlines()
    assert "GOODPUT  LOST" in head
    assert "75%      10 s" in first
    assert "%" not in second
    jobs.list_jobs(remote, 1, as_json=True, long=True)
    found = json.loads(capsys.readouterr().out)
    assert [row["goodput"] and row["goodput"]["lost_s"] for row in found] == [10, None]
