"""Jobs that meet a fault in their first start and show, in a later one, what they go on from. None needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.launcher import LAUNCHERS
from tests.integration.project import Project, wait_until

_NEEDS_MORE = {
    "deepspeed-no-ssh": "DeepSpeed",
    "deepspeed-openmpi": "DeepSpeed, mpi4py and Open MPI",
    "deepspeed-pdsh": "DeepSpeed",
    "deepspeed-slurm": "DeepSpeed",
    "mpirun": "Open MPI",
    "neox": "gpt-neox",
}
"""What the virtual machines would have to have besides, for these launchers."""
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
        # As a collective does without its peer: only whoever watches the ranks can end this one.
        while True:
            signal.pause()
"""
"""Its rank 1 is killed in the first start, after three steps of six."""

SLEEPING = """\
place=$CHECKPOINT_DIR/rank-$RANK
if [[ -e $place ]]; then
  echo "rank $RANK goes on from step $(<"$place")"
  exit 0
fi
echo 3 >"$place.new"
mv "$place.new" "$place"
echo "rank $RANK has saved"
sleep 900
"""
"""Saves, and then does nothing until something happens to it; a start that finds what was saved ends at once."""


def job_file(folder: Path, name: str, **keys: Any) -> str:
    """Write a job file with checkpoints and return its path."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "time": "15m", "checkpoint_dir": "checkpoints", **keys}))
    return str(file)


def counting(folder: Path, launcher: str) -> str:
    """Write a job of two ranks, of which one is killed, for a launcher."""
    (folder / "counting.py").write_text(_COUNTING)
    return job_file(folder, f"killed-{launcher}", nodes=2, retries=1, launcher=launcher, workload="counting.py")


def submit(cluster: Project, file: str) -> dict[str, Any]:
    """Submit a job and return what yard says about it."""
    answer: dict[str, Any] = cluster.yard_json("submit", file)
    return answer


def finish(cluster: Project, job: Mapping[str, Any], seconds: float = 1800) -> str:
    """Follow a job until it has completed. Returns what ranks 0 and 1 said in all its starts."""
    number = str(job["id"])
    said = cluster.yard("logs", number, "-f", timeout=seconds).out
    return said + cluster.yard("logs", number, "--rank", "1").out


def starts(cluster: Project, head: str, job: Mapping[str, Any]) -> list[str]:
    """Return the nodes of each start of a job."""
    lines = cluster.on(head, f"sudo cat {job['run_dir']}/events").splitlines()
    return [line.split()[3] for line in lines if line.split()[1:2] == ["start"]]


def wait_saved(cluster: Project, head: str, job: Mapping[str, Any], ranks: int = 1) -> None:
    """Wait until each rank of a sleeping job has saved."""
    # By the directory's own server: what the nodes wrote is there when their files are closed.
    look = f"sudo sh -c 'cat {job['run_dir']}/checkpoints/rank-?' 2>/dev/null | wc -l"
    wait_until("every rank to save", 180, lambda: cluster.on(head, look).strip() == str(ranks))


def left_on(cluster: Project, node: str, job: Mapping[str, Any]) -> str:
    """Return the processes that a node still has of a job, by the mark in their environment; '' when none."""
    look = f"sudo grep -lszFx RUN_DIR={job['run_dir']} /proc/[0-9]*/environ || true"
    return cluster.on(node, look).strip()
