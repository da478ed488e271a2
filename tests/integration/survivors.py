"""Jobs that fail in their first start and continue from a checkpoint in a later start. They do not use torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.integration.project import Project, wait_until
from yard.job.launcher import LAUNCHERS

_NEEDS_MORE = {
    "deepspeed-no-ssh": "DeepSpeed",
    "deepspeed-openmpi": "DeepSpeed, mpi4py and Open MPI",
    "deepspeed-pdsh": "DeepSpeed",
    "deepspeed-slurm": "DeepSpeed",
    "mpirun": "Open MPI",
    "neox": "gpt-neox",
}
"""Software that these launchers need and that is not installed on the virtual machines."""
ON_THE_MACHINES = sorted(set(LAUNCHERS) - set(_NEEDS_MORE))

_COUNTING = """
import os
import signal
from pathlib import Path

rank, place = int(os.environ["RANK"]), Path(os.environ["CHECKPOINT_DIR"], "rank-" + os.environ["RANK"])
begins = os.environ["RESTART_COUNT"] == os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
step = int(place.read_text()) if place.exists() else 0
print(f"rank {rank} begins at step {step}", flush=True)
while step < 6:
    step += 1
    fresh = place.with_suffix(".new")
    fresh.write_text(str(step))
    fresh.replace(place)
    if begins and step == 3:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # Blocks like a collective operation without its peer, until the rank is terminated.
        while True:
            signal.pause()
"""
"""In the first start, rank 1 kills itself after three of the six steps."""

SLEEPING = """\
place=$CHECKPOINT_DIR/rank-$RANK
if [[ -e $place ]]; then
  echo "rank $RANK continues from step $(<"$place")"
  exit 0
fi
echo 3 >"$place.new"
mv "$place.new" "$place"
echo "rank $RANK has saved"
sleep 900
"""
"""Writes a checkpoint and then sleeps. If a checkpoint exists, the job exits immediately."""

WARNED = """\
if [[ -e $CHECKPOINT_DIR/saved ]]; then
  echo 'continues after the warning'
  exit 0
fi
trap 'touch "$CHECKPOINT_DIR/saved"; exit 0' USR2
echo 'waits for the warning'
while :; do sleep 1 || true; done
"""
"""Writes a checkpoint when USR2 warns of the end, for example of a time limit. The next start continues."""


def job_file(folder: Path, name: str, **keys: Any) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "time": "15m", "checkpoint_dir": "checkpoints", **keys}))
    return str(file)


def counting(folder: Path, launcher: str) -> str:
    """Write a job for a launcher with two ranks, one of which is killed."""
    (folder / "counting.py").write_text(_COUNTING)
    return job_file(folder, f"killed-{launcher}", nodes=2, retries=1, launcher=launcher, workload="counting.py")


def finish(cluster: Project, job: Mapping[str, Any], seconds: float = 1800) -> str:
    """Follow a job until it has completed. Return the output of ranks 0 and 1 from all starts."""
    number = str(job["id"])
    output = cluster.yard("logs", number, "-f", timeout=seconds).out
    return output + cluster.yard("logs", number, "--rank", "1").out


def starts(cluster: Project, head: str, job: Mapping[str, Any]) -> list[str]:
    lines = cluster.on(head, f"sudo cat {job['run_dir']}/events").splitlines()
    return [line.split()[3] for line in lines if line.split()[1:2] == ["start"]]


def wait_saved(cluster: Project, head: str, job: Mapping[str, Any], ranks: int = 1) -> None:
    """Wait until each rank in a sleeping job has written its checkpoint."""
    # The data is on the head, which is the NFS server, as soon as the nodes have closed their files.
    look = f"sudo sh -c 'cat {job['run_dir']}/checkpoints/rank-?' 2>/dev/null | wc -l"
    wait_until("every rank to save", 180, lambda: cluster.on(head, look).strip() == str(ranks))


def left_on(cluster: Project, node: str, job: Mapping[str, Any]) -> str:
    """Return a job's processes on a node, or an empty string. Processes are identified by the job's marker in their
    environment."""
    look = f"sudo grep -lszFx RUN_DIR={job['run_dir']} /proc/[0-9]*/environ || true"
    return cluster.on(node, look).strip()
