"""follow.sh prints a job's log across all starts and exits when the job ends. A fake scontrol returns the job state."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.yard.conftest import MakeProgram
from yard.run.jobs import describe_silence

SCRIPT = Path(__file__).parents[3] / "yard" / "run" / "follow.sh"
DEADLINE = 20.0
LAG = 6.0
"""Maximum number of seconds after the event `end` until follow.sh exits. Without the event, follow.sh queries Slurm
every ten seconds."""


class Followed:
    """A job's run folder and a follow.sh process."""

    def __init__(self, folder: Path) -> None:
        self.jobs = folder
        self.run = folder / "hello-1"
        self.run.mkdir(parents=True)
        (folder / ".ids").mkdir()
        (folder / ".ids" / "7").symlink_to("../hello-1")
        self.state("RUNNING")
        self.process: subprocess.Popen[str] | None = None

    def state(self, state: str) -> None:
        (self.jobs / "state").write_text(state)

    def write(self, file: str, text: str) -> None:
        with (self.run / file).open("a") as log:
            log.write(text)

    def start(self, rank: int = 0, skip: int = 0) -> subprocess.Popen[str]:
        command = ["bash", str(SCRIPT), str(self.jobs), "7", str(rank), str(skip)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self.process

    def line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def rest(self) -> str:
        """Return the remaining output. The script must end before the deadline."""
        assert self.process is not None
        assert self.process.stdout is not None
        begin = time.monotonic()
        deadline = threading.Timer(DEADLINE, self.process.kill)
        deadline.start()
        text = self.process.stdout.read()
        deadline.cancel()
        assert self.process.wait(DEADLINE) == 0, f"still running after {DEADLINE} s"
        assert time.monotonic() - begin < LAG, "follow.sh did not detect the event `end`"
        return text


@pytest.fixture
def followed(tmp_path: Path, program: MakeProgram) -> Iterator[Followed]:
    """A running job."""
    program("scontrol", f'echo "JobId=7 JobState=$(<"{tmp_path}/jobs/state") ExitCode=0:0"')
    made = Followed(tmp_path / "jobs")
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
        for pipe in (made.process.stdin, made.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.engine
def test_new_lines_and_the_final_state_are_printed(followed: Followed) -> None:
    followed.write("job.log", "one\n")
    followed.start()
    assert followed.line() == "one\n"
    followed.write("job.log", "two\nunfini")
    assert followed.line() == "two\n"
    followed.write("job.log", "shed")
    followed.state("COMPLETED")
    followed.write("events", "1 start 0\n2 end 0\n")
    assert followed.rest() == "unfinished\n\x1eJobId=7 JobState=COMPLETED ExitCode=0:0\n"


@pytest.mark.engine
def test_follow_continues_after_a_restart(followed: Followed) -> None:
    followed.write("events", "1 start 0\n2 end 1\n")
    followed.state("PENDING")
    followed.write("job.log", "first\n")
    followed.start()
    assert followed.line() == "first\n"
    time.sleep(1)
    followed.write("events", "3 start 1\n")
    followed.state("RUNNING")
    followed.write("job.log", "second\n")
    assert followed.line() == "second\n"
    followed.state("FAILED")
    followed.write("events", "4 end 1\n")
    assert followed.rest() == "\x1eJobId=7 JobState=FAILED ExitCode=0:0\n"


def test_follow_ends_for_a_job_that_never_started(followed: Followed) -> None:
    followed.state("CANCELLED")
    followed.start()
    assert followed.rest() == "\x1eJobId=7 JobState=CANCELLED ExitCode=0:0\n"


@pytest.mark.parametrize(("rank", "log"), [(1, "rank-1.log"), (5, "rank-4.log"), (9, "rank-8.log")])
def test_log_of_a_rank_is_the_log_of_its_task(rank: int, log: str, followed: Followed) -> None:
    followed.state("COMPLETED")
    for first in (1, 4, 8):
        followed.write(f"rank-{first}.log", f"rank-{first}.log\n")
    followed.start(rank)
    assert followed.line() == f"{log}\n"


RECORD = '{"commit": "0123456789abcdef", "modified": true}\n'


@pytest.mark.parametrize("element", [False, True])
def test_log_begins_with_the_commit(element: bool, followed: Followed, program: MakeProgram) -> None:
    followed.write("snapshot.json", RECORD)
    followed.write("slurm-7_1.out", "hello\n")
    record = f"ArrayJobId=6 JobState=COMPLETED StdOut={followed.run}/slurm-7_1.out"
    program("scontrol", f"echo 'JobId=7 {record if element else record.removeprefix('ArrayJobId=6 ')}'")
    if element:
        (followed.jobs / ".ids" / "7").rename(followed.jobs / ".ids" / "6")
    followed.start()
    assert followed.rest().startswith("yard: commit 0123456789ab with changes\nhello\n")


def test_skipped_lines_are_not_printed(followed: Followed) -> None:
    followed.write("job.log", "one\ntwo\nthree\n")
    followed.state("COMPLETED")
    followed.start(skip=2)
    assert followed.line() == "three\n"


@pytest.mark.parametrize(("state", "pid"), [("COMPLETED", 1), ("RUNNING", 2**22 + 1)])
def test_runner_state_ends_the_follow(state: str, pid: int, followed: Followed) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    followed.write("state.json", json.dumps({"state": state, "runner": {"pid": pid, "ticks": "1", "boot": boot}}))
    followed.write("job.log", "all of it\n")
    followed.start()
    text = followed.rest()
    assert text.startswith('all of it\n\x1e{"state"')


def test_closed_stdin_ends_the_follow(followed: Followed) -> None:
    process = followed.start()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE) == 0


def test_zombie_runner_counts_as_dead(followed: Followed) -> None:
    runner = subprocess.Popen(["true"])
    os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state = {"state": "RUNNING", "runner": {"pid": runner.pid, "ticks": "1", "boot": boot}}
    followed.write("state.json", json.dumps(state))
    followed.start()
    assert followed.rest().startswith('\x1e{"state"')
    runner.wait()


def test_a_silent_job_reports_its_state(followed: Followed) -> None:
    followed.state("PENDING Reason=Resources")
    followed.start()
    assert followed.line().startswith("\x1fPENDING Resources ")
    followed.state("RUNNING")
    followed.write("job.log", "yard: job 7, start 0, on a node\n")
    assert followed.line() == "yard: job 7, start 0, on a node\n"
    line = followed.line()
    assert line.startswith("\x1fRUNNING None ")
    followed.write("job.log", "output\n")
    assert followed.line() == "output\n"
    followed.state("COMPLETED")
    followed.write("events", "1 end 0\n")
    assert not followed.rest().startswith("\x1f")


def test_the_state_of_a_silent_job_is_a_sentence() -> None:
    assert describe_silence(7, "PENDING", "Resources", "0") == "yard: job 7 is queued: waiting for free nodes"
    assert describe_silence(7, "RUNNING", "None", "40").startswith(
        "yard: job 7 is running; its program has printed nothing for 40 s "
    )
