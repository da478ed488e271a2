"""The runner for clusters without a scheduler. In the SSH configuration, all host names resolve to this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.offline.loopback_sshd import Sshd, new_server, running
from tests.yard.run.runner_job import Job
from trainyard.outputs import Cluster
from yard.job.loader import load_job
from yard.job.placement import place
from yard.run.runner.agent import marked
from yard.run.script import render_files

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
        file = tmp_path / "job.yaml"
        file.write_text(text)
        job = load_job(str(file), {}, {}, [])
        cluster = replace(wide, scheduler="none")
        files = render_files(job, place(job, cluster))
        run_dir = tmp_path / "jobs" / f"{job.spec.name}-{len(made)}"
        for name, content in files.items():
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
    job = make(
        job_file("place", 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $NODE_RANK/$NNODES $MASTER_ADDR $NODE_IP"')
    ).submit()
    assert job.ended() == "COMPLETED"
    assert "0/4 0 0/2 10.77.2.1 10.77.2.1\n" in job.log
    printed = [(job.run_dir / f"rank-{rank}.log").read_text() for rank in (1, 2, 3)]
    assert printed == [
        "1/4 1 0/2 10.77.2.1 10.77.2.1\n",
        "2/4 0 1/2 10.77.2.1 10.77.2.2\n",
        "3/4 1 1/2 10.77.2.1 10.77.2.2\n",
    ]
    assert (job.run_dir.parent / ".ids" / str(job.id)).resolve() == job.run_dir.resolve()
    assert (job.state["exit_code"], job.state["restarts"]) == (0, 0)


def test_killed_rank_restarts_the_job(make: MakeJob) -> None:
    job = make(job_file("kill", BEATING, "retries: 1\n")).submit()
    job.up(0, 4)
    os.kill(job.rank_pid(3), signal.SIGKILL)
    first = set(job.pids())
    assert job.until(lambda: not first.intersection(job.pids())) < 8
    job.up(1, 4)
    assert "rank 3 on yard-gpu-1 ended with exit code 137" in job.log
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 1


def test_failed_job_has_the_exit_code_of_the_rank(make: MakeJob) -> None:
    job = make(job_file("fail", "[[ $RANK != 2 ]] || exit 7; sleep 60", "retries: 1\n")).submit()
    assert job.ended() == "FAILED"
    assert (job.state["exit_code"], job.state["restarts"]) == (7, 1)


def test_frozen_rank_is_detected_by_its_heartbeat(make: MakeJob) -> None:
    job = make(job_file("freeze", BEATING, "heartbeat: 10s\n"), heartbeat_seconds=2).submit()
    job.up(0, 4)
    for pid in job.rank_pids(1):
        os.kill(pid, signal.SIGSTOP)
    assert job.ended() == "FAILED"
    assert "rank 1 on yard-gpu-0 has written no heartbeat" in job.log


def test_ranks_end_when_the_runner_is_killed(make: MakeJob) -> None:
    job = make(job_file("orphan", BEATING)).submit()
    job.up(0, 4)
    os.kill(job.state["runner"]["pid"], signal.SIGKILL)
    assert job.until(lambda: job.pids() == []) < 10


def test_killed_agent_leaves_no_process(make: MakeJob) -> None:
    job = make(job_file("agent", BEATING)).submit()
    job.up(0, 4)
    agent = next(pid for pid in marked([f"YARD_AGENT={job.run_dir}"]) if pid not in job.pids())
    os.kill(agent, signal.SIGKILL)
    assert job.ended() == "FAILED"


def test_frozen_agent_counts_as_a_lost_node(make: MakeJob) -> None:
    job = make(job_file("stuck", BEATING)).submit()
    job.up(0, 4)
    agents = [pid for pid in marked([f"YARD_AGENT={job.run_dir}"]) if pid not in job.pids()]
    os.kill(agents[0], signal.SIGSTOP)
    assert job.ended() == "FAILED"
    assert "has sent nothing for 15 s" in job.log


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "CANCELLED"), (signal.SIGTERM, "LOST")])
def test_signal_to_the_runner_ends_all_ranks(number: signal.Signals, state: str, make: MakeJob) -> None:
    job = make(job_file("cancel", BEATING)).submit()
    job.up(0, 4)
    os.kill(job.state["runner"]["pid"], number)
    # The runner receives SIGTERM when the head shuts down.
    assert job.ended() == state


def test_second_job_waits_for_the_nodes(make: MakeJob) -> None:
    first = make(job_file("first", BEATING.replace("enough", "go"))).submit()
    second = make(job_file("second", "echo done"), hosts=[{"name": f"yard-gpu-{i}", "ip": "127.0.0.1"} for i in (0, 1)])
    first.up(0, 4)
    second.submit()
    time.sleep(1.5)
    assert (second.state["state"], second.state["reason"]) == ("PENDING", "Resources")
    (first.run_dir / "go").touch()
    assert first.ended() == "COMPLETED"
    assert second.ended() == "COMPLETED"


def test_job_restarts_at_the_limit_after_a_checkpoint(make: MakeJob) -> None:
    run = (
        "mkdir -p $CHECKPOINT_DIR; [[ $RESTART_COUNT == 0 ]] || exit 0\n"
        "trap 'touch $CHECKPOINT_DIR/saved-$RANK; exit 0' USR2\n"
        "for _ in {1..200}; do sleep 0.1; done; exit 3\n"
    )
    job = make(job_file("limit", run, "checkpoint_dir: checkpoints\n"), seconds=14, warn_seconds=7).submit()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 1
    assert "time limit, checkpoint written" in job.log


def test_log_of_a_job_with_steps_ends_with_its_goodput(make: MakeJob) -> None:
    row = '{"step": 1, "steps": 1, "step_ms": 500, "time": %s}\\n'
    run = f"mkdir -p $CHECKPOINT_DIR; printf '{row}' \"$(date +%s)\" >$CHECKPOINT_DIR/metrics.jsonl; sleep 1\n"
    job = make(job_file("goodput", run, "checkpoint_dir: checkpoints\n")).submit()
    assert job.ended() == "COMPLETED"
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
    job = make(job_file("elastic", BEATING.replace("enough", "go")), min_nodes=1, tasks="node").submit()
    job.until(lambda: all((job.run_dir / f"up-0-{rank}").exists() for rank in (0, 2)))
    os.kill(job.rank_pid(2), signal.SIGKILL)
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
    job = make(job_file("xid", BEATING)).submit()
    job.up(0, 4)
    (tmp_path / "verdict-yard-gpu-1").write_text("fatal TY:gpu-xid: Xid 79, the GPU is lost\n")
    job.up(1, 4)
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert (job.state["restarts"], job.state["node_list"]) == (1, "yard-gpu-0,yard-gpu-2")
    assert "yard-gpu-1 has a fault: TY:gpu-xid: Xid 79" in job.log


def test_other_faults_do_not_end_a_running_job(make: MakeJob, tmp_path: Path) -> None:
    job = make(job_file("warm", BEATING)).submit()
    job.up(0, 4)
    (tmp_path / "verdict-yard-gpu-1").write_text("degraded TY:gpu-throttle: GPU 0 is hot\n")
    time.sleep(5)  # the agents read the file every two seconds
    (job.run_dir / "enough").touch()
    assert job.ended() == "COMPLETED"
    assert job.state["restarts"] == 0
