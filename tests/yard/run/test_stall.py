"""What counts as progress of a job (stall_minutes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yard.run import stall
from yard.run.stall import Progress, wait_for_stall


def append(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize("inside", [False, True])
def test_only_the_ranks_make_progress(tmp_path: Path, inside: bool) -> None:
    run = tmp_path / "run"
    saves = run if inside else run / "saves"
    append(run / "job.log", "yard: job 7, start 0\nhello\n")
    append(saves / "metrics.jsonl", "{}\n")
    append(run / "flight/0-a.jsonl", "{}\n")
    progress = Progress(run, saves)
    assert not progress.has_changed()
    for path, text in (
        (run / "job.log", "yard: the time limit is near\nyard: again\n"),
        (run / "flight/0-a.jsonl", "[]\n"),
        (run / "nccl/a.7", "NCCL INFO\n"),
        (run / "events", "1 fault\n"),
        (run / ".used-7-0", "5\n"),
        (run / "state.json", "{}\n"),
    ):
        append(path, text)
        assert not progress.has_changed(), path
    os.utime(run / "job.log")
    assert not progress.has_changed(), "nobody has written"
    for path, text in (
        (run / "job.log", "yard: again\nstep 2\n"),
        (run / "job.log", "."),
        (run / "rank-1.log", "step 2\n"),
        (run / "heartbeat-3", ""),
        (saves / "metrics.jsonl", "{}\n"),
        (saves / "step-2/model.pt", "x"),
    ):
        append(path, text)
        assert progress.has_changed(), path
        assert not progress.has_changed(), path
    os.utime(run / "heartbeat-3", (1, 1))
    assert progress.has_changed(), "the clock of the file server is wrong"


def test_stall_is_reported_after_the_last_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is simulated to take 20 s. The last change is seen at 200 s, and NFS may delay it by a minute."""
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks <= 10:
            append(tmp_path / "rank-3.log", "step\n")

    monkeypatch.setattr("time.sleep", sleep)
    text = "no output, heartbeat, metrics or checkpoint for 5 minutes (stall_minutes)"
    assert wait_for_stall(tmp_path, None, 5) == text
    assert looks * 20 == 200 + 5 * 60 + 60


def test_watch_ends_with_its_parent(tmp_path: Path) -> None:
    file, ready = tmp_path / "stall.py", tmp_path / "ready"
    text = Path(stall.__file__).read_text().replace("= 20.0", "= 0.1")
    loop = "    while os.getppid() == parent:\n"
    assert loop in text
    # The parent ends only when the program knows its process ID, also on a loaded machine.
    file.write_text(text.replace(loop, f"    Path({str(ready)!r}).touch()\n{loop}"))
    line = f"{sys.executable} {file} {tmp_path} '' 5 & until [ -e {ready} ]; do sleep 0.1; done"
    # The pipe is closed when the program in the background has ended.
    assert subprocess.run(["sh", "-c", line], capture_output=True, timeout=20, check=True).stdout == b"\n"
