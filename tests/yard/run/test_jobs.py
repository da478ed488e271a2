"""Logs across all of a job's starts, faults of nodes, parsers of Slurm's output, cancellations, and goodput.

The sacct rows with starts are based on the sources cited in goodput.parse_starts, not recorded on a cluster.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.yard.conftest import FakeStack, LocalHead, MakeProgram, printed, yard
from trainyard.errors import JobError
from trainyard.faults import HISTORY
from trainyard.outputs import Cluster
from yard.run import jobs, query
from yard.run.jobs import describe_silence, expand, node_faults
from yard.run.query import cancel
from yard.run.queue import Job, explain, parse_one, parse_sacct, parse_scontrol, waiting

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
DEADLINE = 20.0
LAG = 6.0
"""Maximum number of seconds after the event `end` until follow.sh exits. Without the event, follow.sh queries Slurm
every ten seconds."""


class Followed:
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
        command = ["bash", str(ROOT / "yard" / "run" / "follow.sh"), str(self.jobs), "7", str(rank), str(skip)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self.process

    def line(self) -> str:
        assert self.process
        assert self.process.stdout
        return self.process.stdout.readline()

    def rest(self) -> str:
        """Return the remaining output. The script must end before the deadline."""
        assert self.process
        assert self.process.stdout
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
    program("scontrol", f'echo "JobId=7 JobName=x UserId=t(1) JobState=$(<"{tmp_path}/jobs/state") ExitCode=0:0"')
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
    assert followed.rest() == "unfinished\n\x1eJobId=7 JobName=x UserId=t(1) JobState=COMPLETED ExitCode=0:0\n"


_IN_OPEN = 0x20


@pytest.mark.engine
def test_the_log_is_opened_again_after_the_end(followed: Followed) -> None:
    """An NFS client reads the size of an open file again only when the file is opened, or up to a minute later."""
    followed.write("job.log", "one\n")
    followed.start()
    assert followed.line() == "one\n"
    followed.state("COMPLETED")
    libc = ctypes.CDLL(None)
    opened = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(opened, os.fsencode(followed.run / "job.log"), _IN_OPEN) > 0
    followed.write("events", "1 start 0\n2 end 0\n")
    followed.rest()
    try:
        assert os.read(opened, 4096)
    finally:
        os.close(opened)


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
    assert followed.rest() == "\x1eJobId=7 JobName=x UserId=t(1) JobState=FAILED ExitCode=0:0\n"


def test_follow_ends_for_a_job_that_never_started(followed: Followed) -> None:
    followed.state("CANCELLED")
    followed.start()
    assert followed.rest() == "\x1eJobId=7 JobName=x UserId=t(1) JobState=CANCELLED ExitCode=0:0\n"


@pytest.mark.parametrize(("rank", "skip", "line"), [(1, 0, "rank-1.log"), (5, 0, "rank-4.log"), (9, 1, "skipped")])
def test_log_of_a_rank_is_the_log_of_its_task(rank: int, skip: int, line: str, followed: Followed) -> None:
    followed.state("COMPLETED")
    for first in (1, 4, 8):
        followed.write(f"rank-{first}.log", f"rank-{first}.log\nskipped\n")
    followed.start(rank, skip)
    assert followed.line() == f"{line}\n"


@pytest.mark.parametrize("element", [False, True])
def test_log_begins_with_the_commit(element: bool, followed: Followed, program: MakeProgram) -> None:
    followed.write("snapshot.json", '{"commit": "0123456789abcdef", "modified": true}\n')
    followed.write("slurm-7_1.out", "hello\n")
    record = f"ArrayJobId=6 JobName=x UserId=t(1) JobState=COMPLETED StdOut={followed.run}/slurm-7_1.out"
    program("scontrol", f"echo 'JobId=7 {record if element else record.removeprefix('ArrayJobId=6 ')}'")
    if element:
        (followed.jobs / ".ids" / "7").rename(followed.jobs / ".ids" / "6")
    followed.start()
    assert followed.rest().startswith("yard: commit 0123456789ab with changes\nhello\n")


@pytest.mark.parametrize(
    ("state", "pid"), [("COMPLETED", 1), ("RUNNING", 2**22 + 1), ("RUNNING", None)], ids=["ended", "gone", "zombie"]
)
def test_runner_state_ends_the_follow(state: str, pid: int | None, followed: Followed) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    runner = {"pid": pid or zombie.pid, "ticks": "1", "boot": BOOT}
    followed.write("state.json", json.dumps({"state": state, "runner": runner}))
    followed.write("job.log", "all of it\n")
    followed.start()
    assert followed.rest().startswith('all of it\n\x1e{"state"')
    zombie.wait()


def test_closed_stdin_ends_the_follow(followed: Followed) -> None:
    process = followed.start()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE) == 0


@pytest.mark.engine  # the script queries the state every ten seconds
def test_a_silent_job_reports_its_state(followed: Followed) -> None:
    followed.state("PENDING Reason=Resources")
    followed.start()
    assert followed.line().startswith("\x1fPENDING Resources ")
    followed.state("RUNNING")
    followed.write("job.log", "yard: job 7, start 0, on a node\n")
    assert followed.line() == "yard: job 7, start 0, on a node\n"
    assert followed.line().startswith("\x1fRUNNING None ")
    followed.write("job.log", "output\n")
    assert followed.line() == "output\n"
    followed.state("COMPLETED")
    followed.write("events", "1 end 0\n")
    assert not followed.rest().startswith("\x1f")


@pytest.mark.engine
def test_a_restarted_program_is_silent_again(followed: Followed) -> None:
    start = "yard: job 7, start {}, on a node\n"
    followed.write("job.log", f"{start.format(0)}output\n{start.format(1)}")
    followed.start()
    assert [followed.line(), followed.line(), followed.line()] == [start.format(0), "output\n", start.format(1)]
    assert followed.line().startswith("\x1fRUNNING None ")
    followed.state("COMPLETED")
    followed.write("events", "1 end 0\n")
    followed.rest()


@pytest.mark.engine
def test_a_program_whose_output_was_shown_is_not_silent(followed: Followed) -> None:
    followed.write("job.log", "yard: job 7, start 0, on a node\noutput\n")
    followed.start(skip=2)
    time.sleep(2)
    followed.state("COMPLETED")
    followed.write("events", "1 end 0\n")
    assert not followed.rest().startswith("\x1f")


def test_the_state_of_a_silent_job_is_a_sentence() -> None:
    assert describe_silence(7, "PENDING", "Resources", "0") == "yard: job 7 is queued: waiting for free nodes"
    assert "waits until their machines have started" in describe_silence(7, "CONFIGURING", "None", "3")
    assert describe_silence(7, "RUNNING", "None", "40").startswith(
        "yard: job 7 is running; its program has printed nothing for 40 s "
    )


END = 1795380000.0


@pytest.fixture
def head(local: Cluster, tmp_path: Path) -> Any:
    """A head with the run folder of job 3, which ended at END."""
    (tmp_path / "jobs" / "a").mkdir(parents=True)
    (tmp_path / "jobs" / "a" / "events").write_text(f"{END - 3600:.0f} start 0 yard-gpu-[0-1]\n{END:.0f} end 141\n")
    (tmp_path / HISTORY).parent.mkdir()
    return LocalHead(replace(local, shared_path=str(tmp_path), state_dir=str(tmp_path)))


def job(head: Any, state: str = "FAILED") -> Job:
    folder = f"{head.stack.cluster.shared_path}/jobs/a"
    [found] = parse_scontrol(
        f"JobId=3 JobName=x UserId=t(1) JobState={state} ExitCode=141:0 NodeList=yard-gpu-[0-1] WorkDir={folder}"
    )
    return found


@pytest.mark.parametrize(
    ("node", "seconds", "reason", "is_named"),
    [
        ("yard-gpu-1", 25, "Not responding", True),
        ("yard-gpu-1", -500, "TY:munge: munge does not work", True),
        ("yard-gpu-1", -900, "Not responding", False),
        ("yard-gpu-1", 25, "", False),
        ("yard-gpu-1", 25, "new cable", False),
        ("yard-gpu-1", -7200, "TY:munge: munged is not running", False),
        ("yard-gpu-1", 25, "TY:roll", False),
        ("yard-gpu-2", 25, "Not responding", False),
    ],
)
def test_a_fault_near_the_end_is_named(head: Any, node: str, seconds: float, reason: str, is_named: bool) -> None:
    history = {"history": {node: [{"time": END + seconds, "reason": reason}]}}
    Path(head.stack.cluster.state_dir, HISTORY).write_text(json.dumps(history) + "\n")
    found = node_faults(head, [job(head)])
    assert (list(found) == [3]) is is_named
    kind = "munge" if "munge" in reason else "gone"
    when = f"noticed {seconds} s after" if seconds > 0 else f"{-seconds} s before"
    assert not found or found[3] == f"yard-gpu-1 had the fault '{kind}', {when} the job ended ({reason})"


@pytest.mark.parametrize(
    ("events", "state", "row", "sentence"),
    [
        # The node's own record names the cause.
        ("{start}\n{end}\n1 fault yard-gpu-1 {before} TY:munge: munged", "FAILED", "", "'munge', 40 s before"),
        # A fault of an earlier start, of another node or of a person is not the cause.
        ("0 fault yard-gpu-1 {before} TY:munge: x\n{start}\n{end}", "FAILED", "", ""),
        ("{start}\n1 fault yard-gpu-7 {before} TY:munge: x\n{end}", "FAILED", "", ""),
        ("{start}\n{end}", "FAILED", "yard-gpu-1|drained|{before}|new cable", ""),
        # Slurm's current state counts before the head has recorded it.
        ("{start}\n{end}", "FAILED", "yard-gpu-1|drained|{after}|TY:disk-full: full", "'disk-full', noticed 9 s after"),
        ("{start}\n{end}", "FAILED", "yard-gpu-1|idle*|Unknown|none", "'gone', noticed"),
        ("{start}\n{end}", "FAILED", "yard-gpu-1|drained|{old}|TY:disk-full: full", ""),
        # The node had returned before the job started.
        ("{start}\n{end}", "FAILED", "yard-gpu-1|drained|{earlier}|TY:disk-full: full", ""),
        # Slurm killed the script, so that the end is the start plus the run time.
        ("{start}", "NODE_FAIL", "yard-gpu-1|down*|{after}|Not responding", "'gone', noticed 9 s after"),
    ],
)  # fmt: skip
def test_a_fault_is_found_in_each_record(  # noqa: PLR0913, PLR0917  (the table's columns)
    events: str, state: str, row: str, sentence: str, head: Any, program: MakeProgram
) -> None:
    now = int(time.time()) - 20
    times = {"before": now - 40, "after": now + 9, "old": now - 7200, "earlier": now - 90, "end": f"{now} end 141"}
    times["start"] = f"{now - 60} start 0 yard-gpu-[0-1]"
    program("sinfo", f"[[ $SLURM_TIME_FORMAT == %s ]] && echo '{row.format(**times)}'")
    Path(head.stack.cluster.shared_path, "jobs", "a", "events").write_text(events.format(**times) + "\n")
    found = node_faults(head, [replace(job(head, state), elapsed_s=60)])
    assert list(found) == [3] * bool(sentence)
    assert f"yard-gpu-1 had the fault {sentence}" in found.get(3, "yard-gpu-1 had the fault ")


def test_the_end_of_a_killed_rank_waits_for_a_fault(
    head: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = Path(head.stack.cluster.state_dir, HISTORY)
    row = {"time": END + 25, "reason": "TY:munge: munged is not running"}

    def notice(_seconds: float) -> None:
        history.write_text(json.dumps({"history": {"yard-gpu-1": [row]}}))

    monkeypatch.setattr(jobs, "follow", lambda *_: job(head))
    monkeypatch.setattr(time, "sleep", notice)
    assert jobs.follow_log(head, 3, 0, False, quiet=True) == 141
    end = "'munge', noticed 25 s after the job ended (TY:munge: munged is not running)"
    assert capsys.readouterr().err.endswith(
        f"yard: job 3 FAILED: a rank failed with exit code 141; yard-gpu-1 had the fault {end}\n"
    )


def test_jobs_without_a_failure_cost_no_connection(head: Any) -> None:
    assert node_faults(head, [job(head, "COMPLETED"), job(head, "RUNNING")]) == {}
    assert head.lines == []
    assert node_faults(head, [job(head)]) == {}


@pytest.mark.parametrize(
    ("text", "names"), [("", ""), ("a-[0-1,3],b-7", "a-0 a-1 a-3 b-7"), ("n[008-010]", "n008 n009 n010")]
)
def test_node_lists_are_expanded(text: str, names: str) -> None:
    assert list(expand(text)) == names.split()


SCONTROL = (
    "JobId={id} JobName=train-tiny UserId=trainer(2000) JobState={state} Reason={reason} Dependency=(null) Requeue=1 "
    "Restarts={restarts} ExitCode={code} RunTime={time} TimeLimit=01:00:00 Partition=gpu AllocNode:Sid=0.0.0.0:0 "
    "NodeList={nodes} NumNodes={count} CPUs/Task=1 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=2,mem=1.50G,node=2,billing=2 "
    "WorkDir=/shared/jobs/train-tiny-1 StdOut=/shared/jobs/train-tiny-1/job.log"
)

SACCT = """\
1|COMPLETED|0:0|2|yard-gpu-[0-1]|31|gpu|trainer||/shared/jobs|wrap
2|FAILED|3:0|2|yard-gpu-[0-1]|5|gpu|trainer||/shared/jobs|a | in its name
3|CANCELLED by 2000|0:0|2|None assigned|0|gpu|trainer||/shared/jobs|wrap
"""


def line(**changes: object) -> str:
    facts = {"id": 5, "state": "RUNNING", "reason": "None", "restarts": 0, "code": "0:0", "time": "00:00:02"}
    return SCONTROL.format(**{**facts, "nodes": "yard-gpu-[0-1]", "count": 2, **changes})


def one(**changes: object) -> Job:
    (job,) = parse_scontrol(line(**changes))
    return job


def test_fields_of_a_running_job_are_parsed() -> None:
    job = one(time="1-02:03:04", restarts=3)
    assert (job.id, job.name, job.user, job.group, job.state) == (5, "train-tiny", "trainer", "gpu", "RUNNING")
    assert (job.nodes, job.node_list, job.elapsed_s, job.restarts) == (2, "yard-gpu-[0-1]", 93784, 3)
    assert job.run_dir == "/shared/jobs/train-tiny-1"
    assert not job.ended


@pytest.mark.parametrize(
    ("state", "code", "verdict"),
    [("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("CANCELLED", "0:15", 143), ("TIMEOUT", "0:0", 1)],
)
def test_only_a_completed_job_is_a_success(state: str, code: str, verdict: int) -> None:
    job = one(state=state, code=code)
    assert (job.ended, job.verdict) == (True, verdict)
    assert not one(state="COMPLETING").ended


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("PENDING", "Resources", "waiting for free nodes"),
        ("PENDING", "BeginTime", "restarts within seconds"),
        ("PENDING", "ReqNodeNotAvail,_UnavailableNodes:yard-gpu-1", "down or reserved"),
        ("PENDING", "SomethingNew", "SomethingNew"),
        ("NODE_FAIL", "None", "lost a node"),
        ("BOOT_FAIL", "None", "boot fail"),
    ],
)
def test_reasons_are_explained(state: str, reason: str, words: str) -> None:
    job = one(state=state, reason=reason, nodes="(null)", count="2-2")
    assert words in explain(job)
    assert (job.node_list, job.nodes) == ("", 2)


def test_the_reason_of_a_job_with_unused_gpus_is_shown() -> None:
    comment = "AdminComment=idle-gpu:requeue:30 Comment=x"
    (job,) = parse_scontrol(f"{line()} {comment}")
    assert explain(job) == "running; requeued because its GPUs were not used for 30 minutes (limits.idle_gpu)"
    (job,) = parse_scontrol(f"{line(state='PENDING', reason='Resources')} {comment}")
    assert explain(job) == "waiting for free nodes"
    (job,) = parse_scontrol(f"{line()} AdminComment=of an admin")
    assert (job.reason, explain(job)) == ("None", "running")


def test_sacct_rows_are_parsed() -> None:
    jobs = parse_sacct(SACCT)
    assert [(job.state, job.verdict) for job in jobs] == [("COMPLETED", 0), ("FAILED", 3), ("CANCELLED", 1)]
    assert jobs[1].name == "a | in its name"
    assert jobs[2].node_list == ""
    # This is the last row for a job that was cancelled between two starts.
    [job] = parse_sacct("8|REQUEUED|0:0|2|yard-gpu-[0-1]|15|gpu|trainer||/shared/jobs/a-1|a\n")
    assert (job.ended, explain(job)) == (True, "cancelled")
    [job] = parse_sacct("9|CANCELLED by 0|0:15|1|n-0|1805|gpu|ann|idle-gpu:end:30|/shared/jobs/a-1|a\n")
    assert explain(job) == "cancelled; ended because its GPUs were not used for 30 minutes (limits.idle_gpu)"
    # Other lines are ignored.
    text = f"No entry for x\n{line(id=7)}\n{line(id=8)}\n"
    assert [job.id for job in parse_scontrol(text)] == [7, 8]
    assert parse_one("slurm_load_jobs error: Invalid job id specified\n", 7) is None
    # A job's name can contain line breaks, and so imitate other jobs.
    assert [job.id for job in parse_scontrol(f"JobId=1 UserId=a\nJobId=q UserId=a JobState=x\n{text}")] == [7, 8]
    assert parse_sacct("1|y\n1|a|b|c|d|e|f|g|h|i\n") == []
    assert parse_one(text, 7) == parse_scontrol(text)[0]


def write_state(run_dir: Path, runner: dict[str, Any] | None) -> None:
    fresh = run_dir / "fresh"
    fresh.write_text(json.dumps({"state": "PENDING", "runner": runner, "submitted": time.time()}))
    fresh.replace(run_dir / "state.json")


def test_cancellation_waits_for_the_start_of_the_runner(tmp_path: Path) -> None:
    write_state(tmp_path, None)
    # A shell starts background commands with SIGINT ignored. `env` restores the default action.
    with subprocess.Popen(["env", "--default-signal=INT", "sleep", "60"]) as runner:
        ticks = Path(f"/proc/{runner.pid}/stat").read_text().rpartition(")")[2].split()[19]
        identity = {"pid": runner.pid, "ticks": ticks, "boot": BOOT}
        started = threading.Timer(0.3, write_state, (tmp_path, identity))
        started.start()
        cancel(tmp_path)
        started.join()
        try:
            assert runner.wait(5) == -signal.SIGINT
        finally:
            runner.kill()


@pytest.mark.parametrize(("states", "resumed"), [(["COMPLETING"] * 2 + ["CANCELLED"], True), (["RUNNING"], False)])
def test_resume_waits_for_a_job_that_is_ending(
    states: list[str], resumed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter(states)
    monkeypatch.setattr(jobs, "read_job", lambda *_: replace(ENDING, state=next(found)))
    monkeypatch.setattr(jobs, "acting_for_owner", lambda remote, *_, **_options: remote)
    monkeypatch.setattr(jobs, "scheduler_of", lambda _name: SimpleNamespace(resume=lambda *_: 8))
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    remote: Any = SimpleNamespace(stack=SimpleNamespace(cluster=SimpleNamespace(scheduler="slurm")))
    if not resumed:
        with pytest.raises(JobError, match="job 7 is RUNNING; run `yard wait 7`"):
            jobs.resume_job(remote, 7, as_json=False)
        return
    jobs.resume_job(remote, 7, as_json=False)
    output = capsys.readouterr()
    assert output.out == "job 8 (train) continues in /shared/jobs/train\n"
    assert output.err == "yard: job 7 is ending\n"


ENDING = Job(
    id=7, name="train", user="trainer", group="gpu", state="COMPLETING", reason="", nodes=2, node_list="n-[0-1]",
    elapsed_s=9, restarts=0, exit_code=0, run_dir="/shared/jobs/train",
)  # fmt: skip


def test_cancellation_accepts_that_the_runner_has_just_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen("true") as runner:
        runner.wait()
    write_state(tmp_path, {"pid": runner.pid, "ticks": "1", "boot": BOOT})
    monkeypatch.setattr(query, "is_active", lambda _state: True)
    cancel(tmp_path)


@pytest.mark.parametrize("is_spent", [True, False])
def test_commands_print_the_notices_of_the_head(stack: FakeStack, is_spent: bool) -> None:
    notice = "$1,000 of the $1,000 of limits.max_usd_per_month are spent"
    # The name of a job imitates a notice.
    record = r"JobId=7 JobName=x\nforged\n===notices===\nJobId=7 JobName=x UserId=ann(1) NumNodes=1 JobState=PENDING"
    stack.program(
        "ssh",
        f"""case "${{!#}}" in
  *repair/notices*) echo call >>{stack.root}/calls; {f"echo '{notice}';" if is_spent else ""} echo '===notices===' ;;
esac
case "${{!#}}" in
  *"scontrol -o show jobs"*) printf '{record} Reason=PartitionDown Partition=gpu WorkDir=/x\\n' ;;
  *"sinfo -a -h -N -o '%N|%T|%E'"*) echo 'yard-gpu-0|idle|none' ;;
  *sbatch*) cat >/dev/null; echo 7 ;;
esac""",
    )
    for words in (("ps",), ("nodes",), ("submit", "hello")):
        code, _, errors = yard(*words)
        assert code == 0
        assert errors.count(f"yard: {notice}\n") == is_spent
        assert "forged" not in errors
    assert (stack.root / "calls").read_text() == "call\n" * 3
    [job] = json.loads(printed("ps", "--json"))
    fix = "Fix: an operator opens it with `scontrol update partitionname=gpu state=up`"
    assert job["why"] == (notice if is_spent else f"somebody has closed the node group gpu. {fix}")


@pytest.mark.parametrize(
    ("state", "needed", "reason", "is_shown"),
    [
        ("down*", 2, "BeginTime", True),
        ("drained", 2, "BeginTime", True),
        ("down*", 1, "BeginTime", False),
        ("idle~", 2, "BeginTime", False),
        ("mixed", 2, "BeginTime", False),
        ("down*", 2, "Dependency", False),
        ("down*", 2, "JobHeldUser", False),
    ],
)
def test_a_job_that_needs_a_lost_node_says_so(
    stack: FakeStack, state: str, needed: int, reason: str, is_shown: bool
) -> None:
    job = f"JobId=7 JobName=x UserId=ann(1) NumNodes={needed} JobState=PENDING"
    nodes = f"gpu|yard-gpu-0|idle|none\\ngpu|yard-gpu-1|{state}|TY:gone: the node does not respond\\n"
    answers = f"*sinfo*) printf '{nodes}' ;; *scontrol*) echo '{job} Reason={reason} Partition=gpu WorkDir=/x' ;;"
    stack.program("ssh", f"case $* in {answers} esac")
    out = " ".join(printed("ps").split())
    assert (f"yard-gpu-1 is {state} (TY:gone: the node does not respond)" in out) == is_shown
    assert ("`yard heal` shows the next repair step" in out) == is_shown
    assert (waiting(reason) in out) != is_shown


@pytest.mark.parametrize(("down", "is_shown"), [(("a", "b"), True), (("a",), False)])
def test_a_job_whose_machines_cannot_start_says_why(stack: FakeStack, down: tuple[str, ...], is_shown: bool) -> None:
    record = "JobId=7 JobName=x UserId=ann(1) NumNodes=1 JobState=PENDING Reason=Resources Partition=a,b WorkDir=/x"
    power = "TY:power: the machine cannot start: no capacity"
    nodes = "".join(f"{group}|yard-{group}-0|{'down|' + power if group in down else 'idle|none'}\\n" for group in "ab")
    stack.program("ssh", f"case $* in *sinfo*) printf '{nodes}' ;; *scontrol*) echo '{record}' ;; esac")
    out = printed("ps")
    for group in down:
        assert (f"waiting for a machine: yard-{group}-0: the machine cannot start: no capacity" in out) == is_shown
