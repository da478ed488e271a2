"""What jobs meet under Slurm, and go on from: killed ranks, bad nodes, time limits, half checkpoints, frozen nodes.

They share the cluster with test_cluster.py and leave it whole. Most jobs are submitted at once: while Slurm holds one
before its next start, another runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.launcher import launcher as chosen
from tests.integration.project import Project, wait_until
from tests.integration.survivors import (
    ON_THE_MACHINES,
    SLEEPING,
    counting,
    finish,
    job_file,
    left_on,
    starts,
    submit,
    wait_saved,
)
from tests.integration.test_cluster import FIRST, HEAD, SECOND, job_field, slurm_states

pytestmark = [pytest.mark.integration, pytest.mark.full]

_LIMITED = """\
if [[ -e $CHECKPOINT_DIR/saved ]]; then
  echo 'goes on after the time limit'
  exit 0
fi
trap 'touch "$CHECKPOINT_DIR/saved"; exit 0' USR2
while :; do sleep 1 || true; done
"""
_BAD_NODE = """\
echo "$NODE_IP" >>"$CHECKPOINT_DIR/failed"
bad=$(sort "$CHECKPOINT_DIR/failed" | uniq -d)
[[ -n $bad && $bad != "$NODE_IP" ]] || exit 9
echo 'runs elsewhere'
"""
"""Fails until two failures were on one node, and there, too."""
_UNTIL_ENOUGH = """\
  until grep -qs . "$RUN_DIR/enough"; do sleep 1; done
  exit 0"""
"""It must still run when the node comes back: of a job that has just ended, Slurm takes what is left for a delay."""
_KILLED_WHILE_IT_SAVES = """\
import os
import signal

rename = os.rename


def rename_or_die(old, new, **more):
    started_before = os.environ.get("TORCHELASTIC_RESTART_COUNT", os.environ["RESTART_COUNT"])
    if str(new).endswith("step-00000004/.metadata") and started_before == "0":
        print("is killed before", new, "is there", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    rename(old, new, **more)


os.rename = rename_or_die
"""
"""Python reads it before any program: all data of the second checkpoint is written when the rank dies, not its name."""

_TRAINED = {"srun": 1, "torchrun-elastic": 2}
"""Launchers of that job, and its nodes; ranks of the static torchrun need a torch with libuv, which is not there."""


@pytest.fixture(scope="module")
def jobs(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The jobs of this module but for that of the frozen node, by name, all submitted."""
    folder = tmp_path_factory.mktemp("jobs")
    small = "--preset tiny --batch 2 --steps 6 --save-every 2 --run-dir $CHECKPOINT_DIR"
    saves: dict[str, Any] = {"workload": "train.py", "args": small.split(), "retries": 1}
    saves |= {"files": {"sitecustomize.py": _KILLED_WHILE_IT_SAVES}, "env": {"PYTHONPATH": "$RUN_DIR"}}
    files = {
        **{
            f"half-{launcher}": job_file(folder, f"half-{launcher}", launcher=launcher, nodes=nodes, **saves)
            for launcher, nodes in _TRAINED.items()
        },
        "limit": job_file(folder, "limit", time="1m", run=_LIMITED),
        "chain": job_file(folder, "chain", time="1m", chain=2, run=_LIMITED),
        "bad-node": job_file(folder, "bad-node", retries=3, run=_BAD_NODE),
        **{launcher: counting(folder, launcher) for launcher in ON_THE_MACHINES},
    }
    return {name: submit(cluster, file) for name, file in files.items()}


@pytest.mark.parametrize("launcher", ON_THE_MACHINES)
def test_a_killed_rank_costs_no_more_than_a_start(
    launcher: str, cluster: Project, jobs: dict[str, dict[str, Any]]
) -> None:
    said = finish(cluster, jobs[launcher])
    assert "rank 1 begins at step 0" in said
    assert "rank 1 begins at step 3" in said
    # torchrun's elastic agents start the ranks again by themselves.
    assert len(starts(cluster, HEAD, jobs[launcher])) == (1 if chosen(launcher).elastic else 2)


@pytest.mark.parametrize("launcher", _TRAINED)
def test_a_checkpoint_that_is_half_written_is_not_used(
    launcher: str, cluster: Project, jobs: dict[str, dict[str, Any]]
) -> None:
    job = jobs[f"half-{launcher}"]
    said = finish(cluster, job)
    assert "step-00000004/.metadata is there" in said
    assert "resumed at step 2" in said
    assert len(starts(cluster, HEAD, job)) == (1 if chosen(launcher).elastic else 2)
    checkpoints = f"{job['run_dir']}/checkpoints"
    assert cluster.on(HEAD, f"sudo sh -c 'cat {checkpoints}/latest; ls {checkpoints}/step-*/.metadata'").split() == [
        "6",
        f"{checkpoints}/step-00000004/.metadata",
        f"{checkpoints}/step-00000006/.metadata",
    ]


def test_a_full_time_limit_is_the_next_start(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    said = finish(cluster, jobs["limit"])
    assert "time limit, checkpoint written: the job is started again" in said
    assert "goes on after the time limit" in said


def test_a_full_time_limit_is_the_next_job_of_a_chain(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    chain = jobs["chain"]
    rows = {row["id"]: row for row in cluster.yard_json("ps")}
    both = [number for number, row in rows.items() if row["run_dir"] == chain["run_dir"]]
    assert len(both) == 2, rows
    said = finish(cluster, {"id": max(both)})
    assert "time limit: the next job of the chain goes on" in said
    assert "goes on after the time limit" in said
    assert len(starts(cluster, HEAD, chain)) == 2


def test_a_job_is_kept_off_a_node_where_it_failed_twice(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    said = finish(cluster, jobs["bad-node"])
    assert "runs elsewhere" in said
    *failed, last = starts(cluster, HEAD, jobs["bad-node"])
    [bad] = {node for node in failed if failed.count(node) == 2}
    assert last != bad
    # Noted when Slurm has taken it (ExcNodeList), which it forgets soon after the job.
    assert f"avoid {bad}\n" in cluster.on(HEAD, f"sudo cat {jobs['bad-node']['run_dir']}/events")


@pytest.fixture
def frozen(cluster: Project) -> Iterator[list[int]]:
    """Processes that were stopped: they go on at the end."""
    stopped: list[int] = []
    yield stopped
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_node_costs_no_more_than_a_start(cluster: Project, frozen: list[int], tmp_path: Path) -> None:
    job = submit(cluster, job_file(tmp_path, "frozen", run=SLEEPING.replace("  exit 0", _UNTIL_ENOUGH)))
    wait_saved(cluster, HEAD, job)
    node = job_field(cluster, str(job["id"]), "BatchHost")
    other = FIRST if node == SECOND else SECOND
    frozen.append(cluster.pid(node))
    os.kill(frozen[0], signal.SIGSTOP)
    wait_until("a start on the other node", 400, lambda: starts(cluster, HEAD, job) == [node, other])
    os.kill(frozen[0], signal.SIGCONT)
    # Slurm asks a node that did not answer only every few minutes, and learns only then what still runs there.
    cluster.on(node, "sudo systemctl restart slurmd")
    wait_until("no rank of the first start", 400, lambda: left_on(cluster, node, job) == "")
    cluster.on(HEAD, f"echo yes | sudo tee {job['run_dir']}/enough")
    assert "rank 0 goes on from step 3" in finish(cluster, job)
    wait_until("both nodes idle", 240, lambda: set(slurm_states(cluster).values()) == {"idle"})
