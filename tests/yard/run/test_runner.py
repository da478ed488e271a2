"""Clusters without a scheduler: the runner, with hosts that all resolve to this machine, and yard's commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.offline.loopback_sshd import Sshd, new_server, running
from tests.yard.conftest import FakeStack, LocalHead, job_of
from tests.yard.conftest import yard as run_yard
from trainyard.outputs import Cluster
from yard.job.placement import place
from yard.run.jobs import node_faults
from yard.run.query import FIELDS
from yard.run.queue import Job as Listed
from yard.run.runner.agent import marked, sweep
from yard.run.script import render_files

PATIENCE = 40.0


@dataclass
class Job:
    run_dir: Path
    id: int = 0

    def submit(self) -> Job:
        line = [sys.executable, "-m", "runner", "submit", str(self.run_dir)]
        self.id = int(subprocess.run(line, cwd=self.run_dir, capture_output=True, text=True, check=True).stdout)
        return self

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "state.json").read_text())
        return found

    @property
    def log(self) -> str:
        return (self.run_dir / "job.log").read_text() if (self.run_dir / "job.log").exists() else ""

    def pids(self) -> list[int]:
        return sorted(marked([f"RUN_DIR={self.run_dir}"]))

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        begin = time.monotonic()
        while not condition():
            runner_log = (self.run_dir / "runner.log").read_text()
            assert time.monotonic() - begin < seconds, f"{self.state}\n{self.log}\n{runner_log}"
            time.sleep(0.05)

    def up(self, start: int, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Job:
        self.until(lambda: all((self.run_dir / f"up-{start}-{rank}").exists() for rank in ranks))
        return self

    def ended(self) -> str:
        self.until(lambda: self.state["state"] not in {"PENDING", "RUNNING"})
        assert self.pids() == []
        return str(self.state["state"])

    def rank_pids(self, rank: int) -> list[int]:
        """Return the ids of a rank's processes. The first process starts the others."""
        mine = set(marked([f"RANK={rank}"]))
        return [pid for pid in self.pids() if pid in mine]

    def agents(self) -> list[int]:
        return [pid for pid in marked([f"YARD_AGENT={self.run_dir}"]) if pid not in self.pids()]


pytestmark = [pytest.mark.engine, pytest.mark.full]

_SSH = """
words=("$@")
words[-1]=${{words[-1]//\\/run\\/trainyard\\/health\\/verdict/{verdicts}/verdict-${{words[-2]}}}}
exec ssh -F {config} "${{words[@]}}"
"""
BEATING = """\
touch $RUN_DIR/heartbeat-$RANK $RUN_DIR/up-$RESTART_COUNT-$RANK
echo "rank $RANK of $WORLD_SIZE start $RESTART_COUNT on $NODE_RANK"
while [[ ! -e $RUN_DIR/enough ]]; do sleep 0.2; touch $RUN_DIR/heartbeat-$RANK; done
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(new_server(tmp_path_factory.mktemp("sshd"))) as made:
        (made.folder / "user").chmod(0o600)
        (made.folder / "ssh_config").write_text(
            f"Host *\n Hostname 127.0.0.1\n Port {made.port}\n IdentityFile {made.folder}/user\n"
            f" UserKnownHostsFile {made.folder}/known\n StrictHostKeyChecking accept-new\n LogLevel ERROR\n"
        )
        yield made


MakeJob = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path, server: Sshd, wide: Cluster) -> Iterator[MakeJob]:
    made: list[Job] = []
    (tmp_path / "jobs").mkdir()
    (tmp_path / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")

    def build(text: str, **changes: object) -> Job:
        job = job_of(tmp_path, text)
        run_dir = tmp_path / "jobs" / f"{job.spec.name}-{len(made)}"
        for name, content in render_files(job, place(job, replace(wide, scheduler="none"))).items():
            target = run_dir / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content.replace("/etc/trainyard/fabric.env", str(tmp_path / "fabric.env")))
        request = json.loads((run_dir / "job.json").read_text())
        # All host names resolve to this machine, so each host gets its own health check file.
        wrapper = tmp_path / "ssh"
        wrapper.write_text(_SSH.format(config=f"{server.folder}/ssh_config", verdicts=tmp_path))
        request["ssh"] = ["bash", str(wrapper), *request["ssh"][1:]]
        (run_dir / "job.json").write_text(json.dumps({**request, **changes}))
        made.append(Job(run_dir))
        return made[-1]

    yield build
    for job in made:
        if (job.run_dir / "state.json").exists() and (runner := job.state["runner"]):
            (job.run_dir / "enough").touch()
            if job.state["state"] in {"PENDING", "RUNNING"} and Path(f"/proc/{runner['pid']}").exists():
                os.kill(runner["pid"], signal.SIGTERM)
        for pid in marked([f"RUN_DIR={job.run_dir}"]):
            os.kill(pid, signal.SIGKILL)


def job_file(name: str, run: str, more: str = "") -> str:
    lines = "".join(f"  {line}\n" for line in run.splitlines())
    return f"name: {name}\nnodes: 2\ngpus_per_node: 2\n{more}run: |\n{lines}"


def test_ranks_get_their_environment(make: MakeJob) -> None:
    run = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $NODE_RANK/$NNODES $MASTER_ADDR $NODE_IP"'
    job = make(job_file("place", run)).submit()
    assert job.ended() == "COMPLETED"
    assert "0/4 0 0/2 10.77.2.1 10.77.2.1\n" in job.log
    printed = [(job.run_dir / f"rank-{rank}.log").read_text() for rank in (1, 2, 3)]
    places = ["1/4 1 0/2 10.77.2.1 10.77.2.1", "2/4 0 1/2 10.77.2.1 10.77.2.2", "3/4 1 1/2 10.77.2.1 10.77.2.2"]
    assert printed == [f"{place}\n" for place in places]
    assert (job.run_dir.parent / ".ids" / str(job.id)).resolve() == job.run_dir.resolve()
    assert (job.state["exit_code"], job.state["restarts"]) == (0, 0)


def test_killed_rank_restarts_the_job(make: MakeJob) -> None:
    job = make(job_file("kill", BEATING, "retries: 1\n")).submit().up(0)
    os.kill(job.rank_pids(3)[0], signal.SIGKILL)
    first = set(job.pids())
    job.until(lambda: not first.intersection(job.pids()), 8)
    job.up(1)
    assert "rank 3 on yard-gpu-1 ended with exit code 137" in job.log
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 1


def test_failed_job_has_the_exit_code_of_the_rank(make: MakeJob) -> None:
    job = make(job_file("fail", "[[ $RANK != 2 ]] || exit 7; sleep 60", "retries: 1\n")).submit()
    assert job.ended() == "FAILED"
    assert (job.state["exit_code"], job.state["restarts"]) == (7, 1)


def test_frozen_rank_is_detected_by_its_heartbeat(make: MakeJob) -> None:
    job = make(job_file("freeze", BEATING, "heartbeat: 10s\n"), heartbeat_seconds=2).submit().up(0)
    for pid in job.rank_pids(1):
        os.kill(pid, signal.SIGSTOP)
    assert job.ended() == "FAILED"
    assert "rank 1 on yard-gpu-0 has written no heartbeat" in job.log


def test_ranks_end_when_the_runner_is_killed(make: MakeJob) -> None:
    job = make(job_file("orphan", BEATING)).submit().up(0)
    os.kill(job.state["runner"]["pid"], signal.SIGKILL)
    job.until(lambda: job.pids() == [], 10)


def test_ranks_end_when_the_agent_has_lost_the_head(tmp_path: Path) -> None:
    """The head closes the connection while the node is frozen, so the agent cannot write to stderr either."""
    (tmp_path / "job.sh").write_text("echo up\nexec sleep 60\n")
    environment = {"RUN_DIR": str(tmp_path), "RESTART_COUNT": "0", "YARD_NODE": f"{tmp_path}@a"}
    mark = f"YARD_NODE={tmp_path}@a"
    request = {
        "env": environment,
        "mark": mark,
        "ranks": [[0, 0]],
        "node_rank": 0,
        "lease_seconds": 0.5,
        "heartbeat_seconds": None,
        "leaves": False,
    }
    command = [sys.executable, "-m", "yard.run.runner", "agent", str(tmp_path / "verdict")]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert agent.stdin
    assert agent.stdout
    assert agent.stderr
    agent.stdin.write(json.dumps(request).encode() + b"\n")
    agent.stdin.flush()
    try:
        assert agent.stderr.readline() == b"up\n"
        agent.stdout.close()
        agent.stderr.close()
        assert agent.wait(20) == 0
        assert list(marked([mark])) == []
    finally:
        sweep([mark])
        agent.kill()
        agent.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_node_without_an_agent_is_lost(number: signal.Signals, make: MakeJob) -> None:
    job = make(job_file("agent", BEATING)).submit().up(0)
    os.kill(job.agents()[0], number)
    assert job.ended() == "FAILED"
    # After SIGKILL, the connection can also end first.
    assert "has sent nothing for 15 s" in job.log or number == signal.SIGKILL


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "CANCELLED"), (signal.SIGTERM, "LOST")])
def test_signal_to_the_runner_ends_all_ranks(number: signal.Signals, state: str, make: MakeJob) -> None:
    job = make(job_file("cancel", BEATING)).submit().up(0)
    os.kill(job.state["runner"]["pid"], number)
    # The runner receives SIGTERM when the head shuts down.
    assert job.ended() == state


def test_second_job_waits_for_the_nodes(make: MakeJob) -> None:
    first = make(job_file("first", BEATING.replace("enough", "go"))).submit()
    second = make(job_file("second", "echo done"), hosts=[{"name": f"yard-gpu-{i}", "ip": "127.0.0.1"} for i in (0, 1)])
    first.up(0)
    second.submit()
    time.sleep(1.5)
    assert (second.state["state"], second.state["reason"]) == ("PENDING", "Resources")
    (first.run_dir / "go").touch()
    assert first.ended() == "COMPLETED"
    assert second.ended() == "COMPLETED"


def test_job_restarts_at_the_limit_after_a_checkpoint(make: MakeJob) -> None:
    row = '{"step": 1, "steps": 1, "step_ms": 500, "time": %s}\\n'
    run = (
        f"[[ $RESTART_COUNT == 0 ]] || {{ printf '{row}' \"$(date +%s)\" >$CHECKPOINT_DIR/metrics.jsonl; exit 0; }}\n"
        "trap 'touch $CHECKPOINT_DIR/saved-$RANK; exit 0' USR2\n"
        "for _ in {1..200}; do sleep 0.1; done; exit 3\n"
    )
    job = make(job_file("limit", run, "checkpoint_dir: checkpoints\n"), seconds=14, warn_seconds=7).submit()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 1
    assert "time limit, checkpoint written" in job.log
    job.until(lambda: "yard: goodput " in job.log)
    assert "s of useful steps in" in job.log.splitlines()[-1]


def test_job_without_checkpoint_ends_at_the_limit(make: MakeJob) -> None:
    job = make(job_file("over", BEATING), seconds=3, warn_seconds=1).submit()
    assert job.ended() == "TIMEOUT"


def test_node_with_two_failures_is_avoided(make: MakeJob) -> None:
    run = 'echo "$HOSTNAME"; [[ $NODE_IP != 10.77.2.2 ]] || exit 1; sleep 1'
    job = make(job_file("bad", run, "retries: 3\n")).submit()
    assert job.ended() == "COMPLETED"
    assert (job.state["restarts"], job.state["node_list"]) == (2, "yard-gpu-0,yard-gpu-2")


def test_elastic_job_continues_without_a_node(make: MakeJob) -> None:
    job = make(job_file("elastic", BEATING.replace("enough", "go")), min_nodes=1, tasks="node").submit().up(0, (0, 2))
    os.kill(job.rank_pids(2)[0], signal.SIGKILL)
    job.until(lambda: "continues without this node" in job.log)
    (job.run_dir / "go").touch()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 0


def test_a_node_with_a_fault_is_not_used(make: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "verdict-yard-gpu-0").write_text("degraded TY:disk-full: / has 1 % free\n")
    job = make(job_file("sick", "echo $NODE_IP")).submit()
    assert job.ended() == "COMPLETED"
    assert job.state["node_list"] == "yard-gpu-1,yard-gpu-2"
    assert "yard: yard-gpu-0 is not used: TY:disk-full: / has 1 % free\n" in job.log


def test_a_fatal_fault_restarts_the_job_on_other_nodes(make: MakeJob, tmp_path: Path) -> None:
    job = make(job_file("xid", BEATING)).submit().up(0)
    (tmp_path / "verdict-yard-gpu-1").write_text("fatal TY:gpu-xid: Xid 79, the GPU is lost\n")
    job.up(1)
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert (job.state["restarts"], job.state["node_list"]) == (1, "yard-gpu-0,yard-gpu-2")
    assert "yard-gpu-1 has a fault: TY:gpu-xid: Xid 79" in job.log


def test_other_faults_do_not_end_a_running_job(make: MakeJob, tmp_path: Path) -> None:
    job = make(job_file("warm", BEATING)).submit().up(0)
    (tmp_path / "verdict-yard-gpu-1").write_text("degraded TY:gpu-throttle: GPU 0 is hot\n")
    time.sleep(5)  # the agents read the file every two seconds
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 0


def test_a_failed_job_records_the_faults_of_its_nodes(make: MakeJob, tmp_path: Path, wide: Cluster) -> None:
    run = f"sleep 1; echo 'degraded TY:disk-full: / is full' >{tmp_path}/verdict-yard-gpu-1; exit 3"
    job = make(job_file("sick", run)).submit()
    (tmp_path / "verdict-yard-gpu-2").write_text("degraded TY:disk-full: another node\n")
    assert job.ended() == "FAILED"
    assert "yard: yard-gpu-1 has had a fault for " in job.log
    job.until(lambda: " end 3\n" in (job.run_dir / "events").read_text())
    time.sleep(1.1)  # the events contain whole seconds
    (tmp_path / "verdict-yard-gpu-0").write_text("degraded TY:gpu-throttle: GPU 0 is hot\n")
    job.until(lambda: " fault yard-gpu-0 " in (job.run_dir / "events").read_text())
    head: Any = LocalHead(replace(wide, scheduler="none", shared_path=str(tmp_path), state_dir=str(tmp_path)))
    row = {name: job.state[name] for name in FIELDS}
    found = node_faults(head, [Listed(**row, elapsed_s=1)])[job.id]
    assert found.startswith("yard-gpu-1 had the fault 'disk-full', ")
    assert found.endswith(" s before the job ended (TY:disk-full: / is full)")
    assert (job.run_dir / "events").read_text().count(" fault ") == 2


SSH = """
line=${@: -1}
start='python3 -m runner submit'
exec bash -c "${line/$start/sed -i s#/etc/trainyard#@ROOT@# job.sh yard.sh; $start}"
"""


@dataclass(frozen=True)
class Yard:
    """Runs yard for a stack without a scheduler. The stack's shared path is a local folder."""

    shared: Path

    def __call__(self, *words: str) -> tuple[int, Any]:
        code, out, err = run_yard(words[0], "--json", *words[1:])
        return code, json.loads(out.splitlines()[-1]) if out else err

    def job(self, run: str, more: str = "") -> Path:
        file = self.shared / "job.yaml"
        file.write_text(f"name: direct\nnodes: 2\n{more}run: |\n  {run}\n")
        return file

    def until(self, job: int, state: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while json.loads((self.shared / f"jobs/.ids/{job}/state.json").read_text())["state"] != state:
            assert time.monotonic() < deadline, (self.shared / f"jobs/.ids/{job}/job.log").read_text()
            time.sleep(0.05)

    def pids(self, job: int) -> list[int]:
        return list(marked([f"RUN_DIR={(self.shared / f'jobs/.ids/{job}').resolve()}"]))


def attach(yard: Yard) -> subprocess.Popen[str]:
    start = f"import trainyard.project, pathlib; trainyard.project.ROOT = pathlib.Path({str(yard.shared)!r})"
    line = [sys.executable, "-c", f"{start}; from yard.commands.cli import app; app()", "submit", "--attached"]
    return subprocess.Popen([*line, str(yard.job("echo here; sleep 60"))], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def yard(stack: FakeStack, local: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    # A job that is submitted outside a repository records no commit.
    monkeypatch.chdir(stack.root)
    (stack.root / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")
    stack.program("ssh", SSH.replace("@ROOT@", str(stack.root)))
    stack.deploy(replace(local, scheduler="none", shared_path=str(stack.root)))
    made = Yard(stack.root)
    yield made
    for state in (stack.root / "jobs").glob("*/state.json"):
        left = json.loads(state.read_text())
        if left["state"] in {"PENDING", "RUNNING"}:
            os.kill(left["runner"]["pid"], signal.SIGTERM)
            made.until(left["id"], "CANCELLED")


def test_job_is_submitted_followed_and_listed(yard: Yard) -> None:
    code, last = yard("submit", str(yard.job('echo "rank $RANK of $WORLD_SIZE"')), "--follow")
    assert (code, last["state"], last["id"], last["node_list"]) == (0, "COMPLETED", 1, "yard-gpu-0,yard-gpu-1")
    assert yard("logs", "1")[1]["lines"] == ["yard: job 1, start 0, on yard-gpu-0,yard-gpu-1", "rank 0 of 2"]
    assert yard("logs", "1", "--rank", "1")[1]["lines"] == ["rank 1 of 2"]
    code, rows = yard("ps")
    assert [(row["id"], row["state"], row["why"]) for row in rows] == [
        (1, "COMPLETED", "every rank ended with exit code 0")
    ]
    assert yard("submit", str(yard.job("exit 5")))[1]["id"] == 2
    assert yard("wait", "2")[0] == 5
    assert "completed; submit a new job" in yard("resume", "1")[1]["error"]
    assert "job 9 does not exist" in yard("logs", "9")[1]["error"]


def test_cancelled_job_frees_its_nodes(yard: Yard) -> None:
    yard("submit", str(yard.job("sleep 60")))
    yard.until(1, "RUNNING")
    assert {row["name"]: row["state"] for row in yard("nodes")[1]}["yard-gpu-1"] == "allocated"
    assert yard("cancel", "1")[1] == {"version": 1, "cancelled": [1], "already_ended": []}
    code, ended = yard("wait", "1")
    assert (code, ended["state"]) == (143, "CANCELLED")
    assert ended.items() <= yard("ps")[1][0].items()
    assert yard.pids(1) == []
    assert {row["name"]: row["state"] for row in yard("nodes")[1]}["yard-gpu-1"] == "idle"
    assert yard("cancel", "1")[1] == {"version": 1, "cancelled": [], "already_ended": [1]}


def test_job_without_runner_is_lost_and_can_be_resumed(yard: Yard) -> None:
    yard("submit", str(yard.job("[[ $RESTART_COUNT == 1 ]] || sleep 60; echo start $RESTART_COUNT")))
    yard.until(1, "RUNNING")
    os.kill(json.loads((yard.shared / "jobs/.ids/1/state.json").read_text())["runner"]["pid"], signal.SIGKILL)
    code, ended = yard("wait", "1")
    assert (code, ended["state"]) == (1, "LOST")
    assert "`yard resume 1`" in ended["why"]
    assert yard("resume", "1")[1]["id"] == 1
    assert yard("wait", "1")[0] == 0
    assert "start 1" in yard("logs", "1")[1]["lines"]


@pytest.mark.parametrize("seen", ["submitted", "here"])
def test_interrupt_cancels_an_attached_job(seen: str, yard: Yard) -> None:
    attached = attach(yard)
    assert attached.stdout is not None
    with attached.stdout:
        while seen not in attached.stdout.readline():
            pass
        attached.send_signal(signal.SIGINT)
        assert attached.wait(PATIENCE) == 130
    assert yard.pids(1) == []
    assert yard("ps")[1][0]["state"] == "CANCELLED"


def test_own_program_runs_in_a_copy_of_its_directory(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = yard.shared / "my project"
    folder.mkdir()
    (folder / "own_module.py").write_text("NAME = 'mine'\n")
    (folder / "train.py").write_text("import os, sys, own_module\nprint(own_module.NAME, sys.argv[1:], os.getcwd())\n")
    monkeypatch.chdir(folder)
    options = ("--nodes", "2", "--launcher", "srun", "--array", "3-4", "--name", "sweep")
    assert yard("submit", "train.py", *options, "--", "$ARRAY_INDEX", "a b")[0] == 0
    assert yard("submit", "--nodes", "2", "--", "cat", "own_module.py")[0] == 0
    assert [yard("wait", str(job))[0] for job in (1, 2, 3)] == [0, 0, 0]
    runs = {row["id"]: row["run_dir"] for row in yard("ps")[1]}
    for job, element in ((1, "3"), (2, "4")):
        printed = f"mine ['{element}', 'a b'] {runs[job]}/code"
        assert yard("logs", str(job))[1]["lines"][-1] == printed
        assert yard("logs", str(job), "--rank", "1")[1]["lines"] == [printed]
    assert yard("logs", "3")[1]["lines"][-1] == "NAME = 'mine'"


@pytest.mark.parametrize(("option", "value"), [("--after", "1"), ("--array", "0-3%2")])
def test_options_of_slurm_are_refused(option: str, value: str, yard: Yard) -> None:
    code, answer = yard("submit", str(yard.job("true")), option, value)
    assert code == 1
    assert f"{option.removeprefix('--')}: " in answer["error"]


HANGS = """\
import os, pathlib, time

def load():
    time.sleep(100)

def reduce():
    time.sleep(100)

(pathlib.Path(os.environ["RUN_DIR"]) / f"heartbeat-{os.environ['RANK']}").touch()
load() if os.environ["RANK"] == "1" else reduce()
"""


def test_hang_is_explained(make: MakeJob) -> None:
    """Rank 1 waits in its own function. All ranks print their stacks and end, and the job restarts."""
    more = f"heartbeat: 10s\nretries: 1\nfiles:\n  hangs.py: {json.dumps(HANGS)}\n"
    run = "[[ $RESTART_COUNT == 0 ]] || exit 0\npython3 $RUN_DIR/hangs.py"
    job = make(job_file("hang", run, more), heartbeat_seconds=2).submit()
    assert job.ended() == "COMPLETED"
    assert "rank 1: in load (" in job.log
    assert "ranks 0, 2-3: in reduce (" in job.log
    assert job.state["restarts"] == 1


def test_job_without_progress_is_explained(make: MakeJob) -> None:
    """The ranks beat until one hangs, and all other ranks wait for it."""
    hangs = HANGS.replace("(pathlib.Path", "print('up', flush=True)\n(pathlib.Path")
    more = f"stall_minutes: 5\nretries: 1\nfiles:\n  hangs.py: {json.dumps(hangs)}\n"
    job = make(job_file("stall", "[[ $RESTART_COUNT == 0 ]] || exit 0\npython3 $RUN_DIR/hangs.py", more))
    file = job.run_dir / "stall.py"
    file.write_text(file.read_text().replace("60 * minutes + _DELAY_SECONDS", "3").replace("= 20.0", "= 0.2"))
    assert job.submit().ended() == "COMPLETED"
    assert "yard: no output, heartbeat, metrics or checkpoint for 5 minutes (stall_minutes)\n" in job.log
    assert "rank 1: in load (" in job.log
    assert "ranks 0, 2-3: in reduce (" in job.log
    assert " failed 1\n" in (job.run_dir / "events").read_text(), "no node is the cause"
