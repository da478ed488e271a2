"""A job whose batch script runs with fake Slurm commands."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.yard.conftest import MakeProgram
from trainyard.outputs import Cluster
from yard.job.loader import load_job
from yard.job.placement import place
from yard.run.script import render_files

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
        (folder / "job.yaml").write_text(text)
        (folder / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")
        job = load_job(str(folder / "job.yaml"), {}, {}, [])
        for name, content in render_files(job, place(job, cluster)).items():
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
        """Start the script as a batch job."""
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


MakeJob = Callable[[str], Job]


@pytest.fixture
def make(tmp_path: Path, program: MakeProgram, local: Cluster) -> Iterator[MakeJob]:
    made: list[Job] = []

    def build(text: str) -> Job:
        made.append(Job(tmp_path, program, local, "name: fine\nnodes: 2\n" + text))
        return made[-1]

    yield build
    for job in made:
        job.end()
