"""A job's script with fake Slurm commands: restarts, retries and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.project import alive
from tests.yard.conftest import MakeProgram, job_of, wait_until
from trainyard.outputs import Cluster, Prices
from yard.job.placement import limited, place
from yard.run.runner.agent import marked
from yard.run.script import render_files

pytestmark = pytest.mark.engine

PATIENCE = 40.0
SRUN = """
trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=0 SLURM_NODEID=$rank bash "$RUN_DIR/job.sbatch" task &
  pids[rank]=$!
done
code=0
for rank in 0 1; do
  wait "${pids[rank]}" || { code=$?; echo "srun: error: yard-gpu-$rank: task $rank: Exited with exit code $code" >&2; }
done
exit $code
"""


class Job:
    """A job's run folder, and the calls to the fake Slurm commands."""

    def __init__(self, folder: Path, program: MakeProgram, cluster: Cluster, text: str) -> None:
        self.folder = folder / "run"
        self.folder.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")
        job = job_of(folder, text)
        placement = place(job, cluster)
        for name, content in render_files(limited(job, cluster, placement), placement).items():
            (self.folder / name).write_text(content.replace("/etc/trainyard/fabric.env", f"{folder}/fabric.env"))
        program("srun", SRUN)
        program("getent", "echo 10.0.0.1 a; echo 10.0.0.2 b")
        program("squeue", "echo RUNNING")
        program("sinfo", "[[ $* == *down* ]] || printf 'yard-gpu-%d\\n' 0 1 2")
        self.ssh = program("ssh", 'exec bash -c "${*: -4}"')
        program("scancel", "exit 0")
        hosts = "printf 'yard-gpu-%d\\n' 0 1"
        # After a requeue, Slurm kills the script.
        after = f'kill -KILL "$(cat {self.folder}/pid)"'
        self.scontrol = program(
            "scontrol", f"case $1 in show) {hosts} ;; requeue) (sleep 0.7; {after}) >/dev/null 2>&1 & ;; esac"
        )

    def start(self, restarts: int = 0) -> subprocess.Popen[bytes]:
        slurm = {"SUBMIT_DIR": str(self.folder), "JOB_NAME": "fine", "JOB_ID": "7", "JOB_NODELIST": "yard-gpu-[0-1]"}
        slurm |= {"JOB_NUM_NODES": "2", "JOB_PARTITION": "gpu", "RESTART_COUNT": str(restarts)}
        slurm |= {"PROCID": "0", "LOCALID": "0", "NODEID": "0"}
        env = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}}
        env["SLURMD_NODENAME"] = "yard-gpu-0"
        with (self.folder / "job.log").open("ab") as log:
            line = ["bash", str(self.folder / "job.sbatch")]
            process = subprocess.Popen(line, env=env, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        (self.folder / "pid").write_text(str(process.pid))
        return process

    def run(self, restarts: int = 0) -> int:
        """Run the script until it exits. Return its exit code, which is negative after a requeue."""
        return self.start(restarts).wait(PATIENCE)

    def signal_ranks(self, kill: str) -> str:
        """Return the body of a fake scancel that runs `kill` for each rank. Slurm sends no signal to srun."""
        ours = f"grep -lszFx 'RUN_DIR={self.folder}' /proc/[0-9]*/environ"
        ranks = f"for file in $(grep -lszE '^RANK=' $({ours})); do"
        return f'{ranks} file=${{file#/proc/}}; {kill} "${{file%/environ}}"; done'

    def end(self) -> None:
        """Kill the remaining processes from all starts, as Slurm does with a job's control group."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "job.log").read_text()

    def asked(self, word: str) -> list[str]:
        return [call for call in self.scontrol.calls if call.startswith(word)]


MakeJob = Callable[..., Job]
"""Makes a job from the lines of a job file and, optionally, a cluster. Its processes end after the test."""


@pytest.fixture
def make(tmp_path: Path, program: MakeProgram, local: Cluster) -> Iterator[MakeJob]:
    made: list[Job] = []

    def build(text: str, cluster: Cluster = local) -> Job:
        made.append(Job(tmp_path, program, cluster, "name: fine\nnodes: 2\n" + text))
        return made[-1]

    yield build
    for job in made:
        job.end()


def test_successful_job_is_not_requeued(make: MakeJob) -> None:
    job = make("run: echo $RANK of $WORLD_SIZE on $NODE_IP at $MASTER_ADDR\n")
    assert job.run() == 0
    assert "0 of 2 on 10.0.0.1 at 10.0.0.1\n" in job.log
    assert (job.folder / "rank-1.log").read_text() == "1 of 2 on 10.0.0.2 at 10.0.0.1\n"
    assert (job.folder / "hostfile").read_text() == "yard-gpu-0 slots=1\nyard-gpu-1 slots=1\n"
    assert (job.folder / "finished").exists()
    assert job.asked("requeue") == []


def test_each_node_is_recorded_next_to_its_task(make: MakeJob) -> None:
    job = make("run: sleep 1; echo done\n")
    assert job.run() == 0
    # Both nodes of this test are this computer, so they write the same file.
    (file,) = (job.folder / "flight").iterdir()
    facts = json.loads(file.read_text().splitlines()[0])
    assert (facts["start"], facts["tasks"], facts["software"]["kernel"]) == (0, 1, os.uname().release)
    wait_until(lambda: not list(marked([f"RUN_DIR={job.folder}"])))


def test_a_record_that_cannot_be_written_does_not_affect_the_job(make: MakeJob) -> None:
    job = make("run: sleep 0.5; echo done\n")
    (job.folder / "flight").touch()
    assert job.run() == 0
    assert "done\n" in job.log
    assert "flight" not in job.log


def test_the_id_of_an_elastic_rendezvous_is_secret(make: MakeJob, program: MakeProgram) -> None:
    """Every account can read the arguments of a process, and no other account its environment."""
    program("torchrun", 'echo "arguments $*"; echo "id $PET_RDZV_ID"')
    job = make("workload: train.py\nlauncher: torchrun-elastic\n")
    (job.folder / "run-id").write_text("5ec4e7")
    job.run(restarts=2)
    assert "id 5ec4e7-2\n" in job.log
    assert "id 5ec4e7-2\n" in (job.folder / "rank-1.log").read_text()
    arguments = re.findall("arguments .*", job.log)
    assert arguments
    assert "5ec4e7" not in arguments[0]
    assert "--rdzv-id" not in arguments[0]


def test_job_without_pyxis_does_not_start(make: MakeJob) -> None:
    job = make("run: echo began\nretries: 2\ncontainer: {image: 'a:1', runtime: pyxis}\n")
    assert job.run() == 1
    assert "yard: Slurm has no pyxis here; set `containers: enroot`" in job.log
    assert "began" not in job.log
    assert job.asked("requeue") == []


@pytest.mark.parametrize(
    "printed", [["[rank1]: ValueError: no data", "torch.distributed.elastic.Signal: end"], ["first", "last"]]
)
def test_the_log_names_the_first_failed_rank(make: MakeJob, program: MakeProgram, printed: list[str]) -> None:
    echoes = "".join(f"  echo '{line}'\n" for line in printed)
    job = make(f"run: |\n  [ $RANK = 1 ] || exit 143\n{echoes}  exit 3\n")
    messages = ["yard-gpu-1: task 1: Exited with exit code 3", "yard-gpu-0: task 0: Exited with exit code 143"]
    end = "".join(f"echo 'srun: error: {message}' >&2; " for message in messages)
    program("srun", SRUN[: SRUN.index("code=0")] + 'wait "${pids[@]}"\n' + end + "exit 143")
    assert job.run() == 3
    assert "yard: rank 1 on yard-gpu-1 failed first, with exit code 3; `yard logs 7 --rank 1` prints its log" in job.log
    end_of_log = "".join(f"  {line}\n" for line in printed if "elastic" not in line)
    assert f"From its end:\n{end_of_log}" in job.log
    assert "torch.distributed.elastic" not in job.log
    assert "failed 3 yard-gpu-1" in (job.folder / "events").read_text()


def test_a_failure_of_rank_0_refers_to_the_job_log(make: MakeJob) -> None:
    job = make("run: exit 5\n")
    assert job.run() == 5
    assert "rank 0 on yard-gpu-0 failed first, with exit code 5; its messages are above" in job.log


@pytest.mark.parametrize("lost", [True, False])
def test_ranks_are_killed_only_if_a_node_is_lost(make: MakeJob, program: MakeProgram, lost: bool) -> None:
    # Each rank is one process: if its child were killed first, the rank's own shell would print "Killed".
    waiting = "exec {idle}<> <(:); until read -t 60 -u $idle; do true; done"
    job = make(f"run: |\n  trap '' TERM; echo process $BASHPID; {waiting}\n")
    if lost:
        program("sinfo", "[[ $* != *'yard-gpu-[0-1] -t down'* ]] || echo yard-gpu-1")
        # srun waits for the ranks of the step.
        program("srun", SRUN.replace("'kill $(jobs -p) 2>/dev/null; exit 143'", "''"))
    process = job.start()
    other = job.folder / "rank-1.log"  # rank 1 creates it, possibly after the first output of rank 0
    wait_until(lambda: "process " in job.log and other.exists() and "process " in other.read_text())
    ranks = [int(text.split("process ")[1].split()[0]) for text in (job.log, other.read_text())]
    # Slurm sends SIGTERM to all processes of the job.
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(PATIENCE)
    wait_until(lambda: [alive(rank) for rank in ranks] == [not lost] * 2)
    assert ("nodes that are down: yard-gpu-1; the ranks on the other nodes are killed" in job.log) is lost
    assert "Killed" not in job.log
    # The script does not connect to the lost node, because the connection would fail only after ten seconds. It runs on
    # the other node, and needs no connection to this node.
    assert job.ssh.calls == []
    assert job.asked("requeue") == []


def test_failed_job_retries_and_avoids_a_bad_node(make: MakeJob) -> None:
    job = make("run: exit $((RANK * 3))\nretries: 2\n")
    assert job.run() < 0
    assert job.asked("requeue") == ["requeue 7"]
    assert job.asked("update") == []
    assert job.run(1) < 0
    # After the second failure on yard-gpu-1, the job uses the other two nodes.
    assert job.asked("update") == ["update JobId=7 ExcNodeList=yard-gpu-1"]
    assert job.run(2) == 3
    assert len(job.asked("requeue")) == 2
    events = [line.split()[1:] for line in (job.folder / "events").read_text().splitlines()]
    assert [event for event in events if event[0] == "failed"] == [["failed", "3", "yard-gpu-1"]] * 3
    assert ["avoid", "yard-gpu-1"] in events


@pytest.mark.parametrize("age", [40, 7200])
def test_a_sick_node_is_named_and_avoided(age: int, make: MakeJob, program: MakeProgram, tmp_path: Path) -> None:
    job = make("run: exit $((RANK * 3))\nretries: 1\n")
    verdict = tmp_path / "verdict"
    verdict.write_text("fatal TY:munge: munged is not running\n")
    os.utime(verdict, (time.time() - age, time.time() - age))
    line = f"${{line//'/run/trainyard/health/verdict'/{verdict}}}"
    program("ssh", f'[[ $* == *" yard-gpu-1 "* ]] || exit 1; line=${{!#}}; exec bash -c "{line}"')
    assert job.run() < 0
    is_blamed = age < 600
    assert ("yard: yard-gpu-1 has had a fault for 4" in job.log) is is_blamed
    recorded = [line.split(" ", 2)[2] for line in (job.folder / "events").read_text().splitlines() if " fault " in line]
    assert len(recorded) == is_blamed
    assert all(
        line.startswith("yard-gpu-1 1") and line.endswith(" TY:munge: munged is not running") for line in recorded
    )
    # The node is sick in both cases, so the next start uses another one.
    assert job.asked("update") == ["update JobId=7 ExcNodeList=yard-gpu-1"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_requeued_job_ends_on_sigterm(seconds: int, make: MakeJob, program: MakeProgram) -> None:
    job = make("run: exit 3\nretries: 1\n")
    hosts = "printf 'yard-gpu-%d\\n' 0 1"
    asks = f'(sleep {seconds}; kill -TERM "$(cat {job.folder}/pid)") >/dev/null 2>&1'
    # Slurm sends SIGTERM while `scontrol` is running or afterwards.
    program("scontrol", f"case $1 in show) {hosts} ;; requeue) {asks} {'&' if seconds else ''} ;; esac")
    begin = time.monotonic()
    assert job.run() == 3
    # A script that does not end would get SIGKILL a minute later.
    assert time.monotonic() - begin < 20


def test_bad_node_is_kept_without_alternatives(make: MakeJob, program: MakeProgram) -> None:
    job = make("run: exit $((RANK * 3))\nretries: 2\n")
    program("sinfo", "printf 'yard-gpu-%d\\n' 0 1")
    job.run()
    job.run(1)
    assert job.asked("update") == []


def test_log_of_a_job_with_steps_ends_with_its_goodput(make: MakeJob, program: MakeProgram) -> None:
    program("sacct", 'now=$(date +%s); echo "7|$((now - 40))|$((now - 30))"; echo "7|$((now - 10))|Unknown"')
    row = '{"step": 1, "steps": 1, "step_ms": 5000, "time": %s}\\n'
    lines = f"  ((RANK)) || printf '{row}' \"$(date +%s)\" >$CHECKPOINT_DIR/metrics.jsonl\n"
    job = make(f"checkpoint_dir: checkpoints\nrun: |\n{lines}")
    assert job.run() == 0
    last = job.log.splitlines()[-1]
    assert last.startswith("yard: goodput 1"), job.log
    assert "5 s of useful steps" in last
    assert "20 s between starts" in last


@pytest.mark.parametrize(("seconds", "occasion"), [(None, "time limit"), (100, "time limit"), (9000, "a node leaves")])
def test_warning_leads_to_checkpoint_and_requeue(
    seconds: int | None, occasion: str, make: MakeJob, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seconds is not None:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + seconds))
    lines = "  echo up\n  trap 'touch $CHECKPOINT_DIR/step-1; exit 0' USR2\n  for _ in {1..100}; do sleep 0.1; done\n"
    job = make(f"checkpoint_dir: checkpoints\nrun: |\n{lines}")
    process = job.start()
    program("scancel", job.signal_ranks("kill -USR2"))
    wait_until(lambda: "up" in job.log and (job.folder / "rank-1.log").exists())
    time.sleep(0.3)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(PATIENCE) < 0
    assert f"{occasion}, checkpoint written" in job.log


def priced(cluster: Cluster, usd: float = 30.0) -> Cluster:
    """Return the cluster with a price. Two nodes cost a dollar a minute."""
    return replace(cluster, prices=Prices(nodes={"gpu": usd}))


def test_max_usd_holds_over_all_starts(make: MakeJob, local: Cluster) -> None:
    job = make("max_usd: 60\nretries: 9\nrun: sleep 6; exit 3\n", priced(local))
    used = {start: job.folder / f".used-7-{start}" for start in range(4)}
    assert job.run() < 0
    assert "TimeLimit" not in " ".join(job.asked("update"))
    assert 6 <= int(used[0].read_text()) < 30
    # The second start is lost with its node after half an hour.
    used[1].write_text("1800\n")
    assert job.run(2) < 0
    assert job.asked("update")[0] == "update JobId=7 TimeLimit=29"
    assert "earlier starts and the boot of machines used 18" in job.log
    job.end()
    used[2].write_text("1600\n")
    assert job.run(3) == 3
    assert len(job.asked("requeue")) == 2
    assert "s are left, so it does not restart. Fix: raise max_usd" in job.log
    # Slurm itself can start the job again, for example after the loss of a node.
    used[3].write_text("200\n")
    starts = job.log.count("rank 0")
    assert job.run(4) == 1
    assert job.log.count("rank 0") == starts
    assert (job.folder / "events").read_text().endswith(" end 1\n")


def test_saved_job_without_money_fails(make: MakeJob, program: MakeProgram, local: Cluster) -> None:
    lines = "  echo up\n  trap 'touch $CHECKPOINT_DIR/step-1; exit 0' USR2\n  for _ in {1..100}; do sleep 0.1; done\n"
    keys = f"max_usd: 3\ncheckpoint_dir: checkpoints\nrun: |\n{lines}"
    job = make(keys, priced(local))
    (job.folder / ".used-7-0").write_text("60\n")
    process = job.start(1)
    program("scancel", job.signal_ranks("kill -USR2"))
    wait_until(lambda: "up" in job.log and (job.folder / "rank-1.log").exists())
    time.sleep(0.3)
    process.send_signal(signal.SIGUSR2)
    assert process.wait(PATIENCE) == 1
    assert job.asked("requeue") == []


def test_job_ends_if_slurm_keeps_its_time_limit(make: MakeJob, program: MakeProgram, local: Cluster) -> None:
    job = make("max_usd: 3\nrun: echo never\n", priced(local))
    program("scontrol", "[[ $1 == show ]] || exit 1; printf 'yard-gpu-%d\\n' 0 1")
    (job.folder / ".used-7-0").write_text("100\n")
    assert job.run(1) == 1
    assert "never" not in job.log


def test_program_that_ignores_the_warning_is_requeued(make: MakeJob, program: MakeProgram) -> None:
    lines = "  touch $CHECKPOINT_DIR/step-1\n  echo up\n  trap '' USR2\n  while sleep 0.1; do :; done\n"
    job = make(f"time: 1m\ncheckpoint_dir: checkpoints\nrun: |\n{lines}")
    script = job.folder / "job.sbatch"
    # The warning is sent 3 s before the limit instead of 15 s. The ranks are terminated 2 s after the warning.
    script.write_text(script.read_text().replace("warning_seconds=15", "warning_seconds=3"))
    process = job.start()
    program("scancel", job.signal_ranks('kill "-${1#--signal=}"'))
    wait_until(lambda: "up" in job.log)
    process.send_signal(signal.SIGUSR2)
    # Slurm sends SIGTERM when the time limit is reached.
    limit = threading.Timer(8, process.terminate)
    limit.start()
    assert process.wait(PATIENCE) < 0
    limit.cancel()
    assert "time limit, checkpoint written" in job.log
    assert job.asked("requeue") == ["requeue 7"]


def test_missing_heartbeat_fails_the_job(make: MakeJob) -> None:
    job = make("heartbeat: 10s\nrun: touch $RUN_DIR/heartbeat-$RANK; sleep 60\n")
    shared = job.folder / "yard.sh"
    shared.write_text(shared.read_text().replace("heartbeat + 60", "1").replace("sleep 5;", "sleep 0.2;"))
    assert job.run() == 143
    assert "has written no heartbeat for 2 s" in job.log


def test_hang_is_explained(make: MakeJob) -> None:
    hangs = (
        "import os, pathlib, time\n"
        "(pathlib.Path(os.environ['RUN_DIR']) / ('heartbeat-' + os.environ['RANK'])).touch()\n"
        "def load(): time.sleep(100)\n"
        "def reduce(): time.sleep(100)\n"
        "load() if os.environ['RANK'] == '1' else reduce()\n"
    )
    job = make(f"heartbeat: 10s\nfiles: {{hangs.py: {json.dumps(hangs)}}}\nrun: exec python3 $RUN_DIR/hangs.py\n")
    shared = job.folder / "yard.sh"
    shared.write_text(shared.read_text().replace("heartbeat + 60", "1").replace("sleep 5;", "sleep 0.2;"))
    assert job.run() != 0
    assert "yard: rank 1: in load (" in job.log
    assert "yard: rank 0: in reduce (" in job.log
    assert "failed first" not in job.log, "the ranks were ended because of the hang"
    assert re.search(r"(?m)^\d+ failed \d+ ?$", (job.folder / "events").read_text()), "no node is the cause"


@pytest.mark.parametrize("checkpoints", ["", "checkpoint_dir: .\n"])
def test_job_without_progress_fails_and_is_explained(make: MakeJob, checkpoints: str) -> None:
    """What yard writes meanwhile, also to a checkpoint folder that is the run folder, is no progress."""
    hangs = "import time\ndef load(): time.sleep(100)\nprint('up', flush=True)\nload()\n"
    files = f"files: {{hangs.py: {json.dumps(hangs)}}}\nrun: exec python3 $RUN_DIR/hangs.py\n"
    job = make(f"stall_minutes: 5\nretries: 1\n{checkpoints}{files}")
    stall, shared = job.folder / "stall.py", job.folder / "yard.sh"
    stall.write_text(stall.read_text().replace("60 * minutes + _DELAY_SECONDS", "2").replace("= 20.0", "= 0.2"))
    yards = 'for i in {1..99}; do sleep 0.1; say "$i"; note "$i"; touch "$RUN_DIR/flight/x"; done &\n  start_step &'
    shared.write_text(shared.read_text().replace("start_step &", yards))
    assert job.run() < 0, "the job is requeued"
    assert "yard: no output, heartbeat, metrics or checkpoint for 5 minutes (stall_minutes)\n" in job.log
    assert "yard: ranks 0-1: in load (" in job.log
    assert job.asked("requeue") == ["requeue 7"]


def test_chain_ends_after_the_work_is_finished(make: MakeJob) -> None:
    job = make("chain: 3\ncheckpoint_dir: c\nrun: echo work\n")
    assert [job.run(), job.run()] == [0, 0]
    assert job.log.count("work\n") == 1


def test_first_node_launcher_runs_in_the_batch_shell(make: MakeJob, program: MakeProgram) -> None:
    job = make("launcher: mpirun\nrun: echo here\nenv: {SOME: thing}\n")
    mpirun = program("mpirun", "exit 0")
    assert job.run() == 0
    (call,) = mpirun.calls
    assert "-np 2 --hostfile" in call
    assert "-x SOME " in call
    assert "--mca btl_tcp_if_include lo " in call


def test_ranks_started_over_ssh_are_killed(make: MakeJob, program: MakeProgram) -> None:
    job = make("launcher: deepspeed-pdsh\nworkload: train.py\n")
    program("deepspeed", "nohup sleep 300 >/dev/null 2>&1 & echo $! >left; exit 4")
    assert job.run() == 4
    assert not alive(int((job.folder / "left").read_text()))
    assert "GLOO_SOCKET_IFNAME=lo" in (job.folder / "deepspeed.env").read_text().splitlines()
    assert [call.split()[-5] for call in job.ssh.calls if "sweep" in call] == ["yard-gpu-1"] * 2


def test_ranks_get_the_secrets(make: MakeJob) -> None:
    job = make('run: printf "%s" "$HF_TOKEN" >"got-$RANK"\nsecrets: [HF_TOKEN]\n')
    (job.folder / "secrets.sh").write_text("export HF_TOKEN='a b'\n")
    assert job.run() == 0
    assert [(job.folder / f"got-{rank}").read_text() for rank in (0, 1)] == ["a b", "a b"]
    assert "a b" not in job.log
