"""Job recovery, first under Slurm and then without a scheduler: killed ranks, faulty nodes, time limits, frozen nodes.

Most jobs are submitted at the beginning, so that other jobs can run while Slurm delays the restart of a job.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, wait_until
from tests.integration.survivors import (
    ON_THE_MACHINES,
    SLEEPING,
    WARNED,
    counting,
    finish,
    job_file,
    left_on,
    starts,
    wait_saved,
)
from yard.job.launcher import launcher as chosen

pytestmark = [pytest.mark.integration, pytest.mark.full]

_BAD_NODE = """\
echo "$NODE_IP" >>"$CHECKPOINT_DIR/failed"
bad=$(sort "$CHECKPOINT_DIR/failed" | uniq -d)
[[ -n $bad && $bad != "$NODE_IP" ]] || exit 9
echo 'runs elsewhere'
"""
"""Fails on every node until one node has two failures, and afterwards only on that node."""
_UNTIL_ENOUGH = """\
  until grep -qs . "$RUN_DIR/enough"; do sleep 1; done
  exit 0"""
"""Keeps the job running until the node returns. If the job had just ended, Slurm would tolerate its processes."""


@pytest.fixture(scope="module")
def jobs(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The submitted jobs by name, without the job for the frozen node."""
    folder = tmp_path_factory.mktemp("jobs")
    files = {
        "limit": job_file(folder, "limit", time="1m", run=WARNED),
        "chain": job_file(folder, "chain", time="1m", chain=2, run=WARNED),
        "bad-node": job_file(folder, "bad-node", retries=3, run=_BAD_NODE),
        **{launcher: counting(folder, launcher) for launcher in ON_THE_MACHINES},
    }
    return {name: cluster.submit(file) for name, file in files.items()}


@pytest.mark.parametrize("launcher", ON_THE_MACHINES)
def test_job_continues_after_a_killed_rank(launcher: str, cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    output = finish(cluster, jobs[launcher])
    assert "rank 1 begins at step 0" in output
    assert "rank 1 begins at step 3" in output
    # torchrun's elastic agents restart the ranks without a restart of the job.
    assert len(starts(cluster, HEAD, jobs[launcher])) == (1 if chosen(launcher).elastic else 2)


def test_job_is_requeued_at_its_time_limit(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    output = finish(cluster, jobs["limit"])
    assert "time limit, checkpoint written: restarting the job" in output
    assert "continues after the warning" in output


def test_next_job_of_a_chain_starts_at_the_time_limit(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    chain = jobs["chain"]
    rows = {row["id"]: row for row in cluster.yard_json("ps")}
    both = [number for number, row in rows.items() if row["run_dir"] == chain["run_dir"]]
    assert len(both) == 2, rows
    output = finish(cluster, {"id": max(both)})
    assert "time limit: the next job of the chain continues" in output
    assert "continues after the warning" in output
    assert len(starts(cluster, HEAD, chain)) == 2


def test_job_excludes_a_node_after_two_failures(cluster: Project, jobs: dict[str, dict[str, Any]]) -> None:
    output = finish(cluster, jobs["bad-node"])
    assert "runs elsewhere" in output
    *failed, last = starts(cluster, HEAD, jobs["bad-node"])
    [bad] = {node for node in failed if failed.count(node) == 2}
    assert last != bad
    # The runner logs the exclusion after Slurm has accepted it. Slurm removes the job's ExcNodeList soon after the job
    # ends, so the test reads the log.
    assert f"avoid {bad}\n" in cluster.on(HEAD, f"sudo cat {jobs['bad-node']['run_dir']}/events")


def test_job_continues_after_a_frozen_node(cluster: Project, frozen: list[int], tmp_path: Path) -> None:
    job = cluster.submit(job_file(tmp_path, "frozen", run=SLEEPING.replace("  exit 0", _UNTIL_ENOUGH)))
    wait_saved(cluster, HEAD, job)
    node = cluster.job_field(str(job["id"]), "BatchHost")
    other = FIRST if node == SECOND else SECOND
    frozen.append(cluster.pid(node))
    os.kill(frozen[0], signal.SIGSTOP)
    wait_until("a start on the other node", 400, lambda: starts(cluster, HEAD, job) == [node, other])
    os.kill(frozen[0], signal.SIGCONT)
    # Slurm polls an unresponsive node only every few minutes. Until then, Slurm cannot detect which jobs still run on
    # the node.
    cluster.on(node, "sudo systemctl restart slurmd")
    wait_until("no rank of the first start", 400, lambda: left_on(cluster, node, job) == "")
    cluster.on(HEAD, f"echo yes | sudo tee {job['run_dir']}/enough")
    assert "rank 0 continues from step 3" in finish(cluster, job)
    cluster.wait_idle(240)


READ = """\
name: mapped
nodes: 2
time: 10m
run: |
  if [[ $RANK == 0 ]]; then
    head -c 24M /dev/urandom >"$RUN_DIR/data.bin"
    sha256sum "$RUN_DIR/data.bin" >"$RUN_DIR/sum"
    mv "$RUN_DIR/sum" "$RUN_DIR/ready"
  fi
  until [[ -s $RUN_DIR/ready ]]; do sleep 1; done
  python3 - <<'PROGRAM'
  import hashlib, mmap, os, time
  run = os.environ["RUN_DIR"]
  with open(f"{run}/data.bin", "rb") as file:
      mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
      digest = hashlib.sha256()
      for at in range(0, len(mapped), 1 << 20):
          digest.update(mapped[at:at + (1 << 20)])
          open(f"{run}/reading", "w").close()
          time.sleep(0.5)
  assert digest.hexdigest() == open(f"{run}/ready").read().split()[0]
  PROGRAM
"""


def test_wrong_names_and_interfaces_are_reported_and_tolerated(cluster: Project) -> None:
    spoil = (
        'sudo sed -i "1i 127.0.1.1 $(hostname).lan $(hostname)" /etc/hosts;'
        "sudo ip link add docker0 type bridge; sudo ip addr add 172.17.0.1/16 dev docker0; sudo ip link set docker0 up;"
        "sudo ip link add vetha type veth peer name vethb; sudo ip addr add 10.0.2.15/24 dev vetha;"
        "sudo ip link set vetha up; sudo ip link set vethb up"
    )
    for node in (FIRST, SECOND):
        cluster.on(node, spoil)
    try:
        done = cluster.yard("doctor", timeout=300, check=False)
        assert done.code == 1
        assert f"{FIRST} resolves to 127.0.1.1" in done.out
        job = cluster.submit("allreduce")
        assert "# Avg bus bandwidth" in cluster.follow(str(job["id"]))
    finally:
        for node in (FIRST, SECOND):
            cluster.on(
                node, "sudo ip link del docker0; sudo ip link del vetha; sudo systemctl restart trainyard-bootstrap"
            )
            cluster.wait_ready(node, 120)
    assert "resolves to" not in cluster.yard("doctor", timeout=300, check=False).out
    cluster.wait_idle()


def test_mapped_read_survives_an_nfs_restart(cluster: Project, tmp_path: Path) -> None:
    file = tmp_path / "mapped.yaml"
    file.write_text(READ)
    job = cluster.submit(str(file))
    reading = f"sudo test -e {job['run_dir']}/reading && echo yes || true"
    wait_until("the read to begin", 120, lambda: "yes" in cluster.on(HEAD, reading), 1)
    cluster.on(HEAD, "sudo systemctl restart nfs-server")
    cluster.follow(str(job["id"]))


@pytest.fixture(scope="module")
def direct(cluster: Project) -> Iterator[Project]:
    """The shared cluster after `pulumi up` with `scheduler: none`. The tests of other modules need Slurm again."""
    cluster.edit(lambda spec: spec.update(scheduler="none"))
    try:
        cluster.stack("up", timeout=900)
        yield cluster
    finally:
        # `up` refuses to change the scheduler while a job runs, for example the job of a failed test.
        for row in cluster.yard_json("ps"):
            if row["state"] in {"PENDING", "RUNNING"}:
                cluster.yard("cancel", str(row["id"]), check=False)
        cluster.edit(lambda spec: spec.update(scheduler="slurm"))
        cluster.stack("up", timeout=900)
        cluster.wait_idle()


_DIRECT = [launcher for launcher in ON_THE_MACHINES if not launcher.startswith("torchrun")]
"""torch starts slowly on emulated machines, so its launchers are tested only under Slurm."""


@pytest.fixture(scope="module")
def killed(direct: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("jobs")
    return {launcher: direct.submit(counting(folder, launcher)) for launcher in _DIRECT}


def test_slurm_is_stopped(direct: Project) -> None:
    assert json.loads(direct.stack("outputs").out)["cluster"]["scheduler"] == "none"
    assert direct.on(HEAD, "cat /job/hostfile") == f"{FIRST} slots=2\n{SECOND} slots=2\n"
    assert direct.on(HEAD, "systemctl is-active slurmctld slurmdbd", check=False).split() == ["inactive"] * 2
    assert direct.on(FIRST, "systemctl is-active slurmd", check=False).split() == ["inactive"]
    direct.stack("preview", "--expect-no-changes")


@pytest.mark.parametrize("launcher", _DIRECT)
def test_direct_job_continues_after_a_killed_rank(
    launcher: str, direct: Project, killed: dict[str, dict[str, Any]]
) -> None:
    output = finish(direct, killed[launcher])
    assert "rank 1 begins at step 0" in output
    assert "rank 1 begins at step 3" in output
    assert starts(direct, HEAD, killed[launcher]) == [f"{FIRST},{SECOND}"] * 2


def test_direct_job_continues_after_a_frozen_node(direct: Project, frozen: list[int], tmp_path: Path) -> None:
    job = direct.submit(job_file(tmp_path, "frozen", run=SLEEPING))
    wait_saved(direct, HEAD, job)
    frozen.append(direct.pid(FIRST))
    os.kill(frozen[0], signal.SIGSTOP)
    output = finish(direct, job)
    assert f"lost {FIRST}: restarting the job" in output
    assert "rank 0 continues from step 3" in output
    assert starts(direct, HEAD, job) == [FIRST, SECOND]
    os.kill(frozen[0], signal.SIGCONT)
    wait_until("no rank of the first start", 120, lambda: left_on(direct, FIRST, job) == "")


def test_job_lost_by_its_head_continues_when_resumed(direct: Project, tmp_path: Path) -> None:
    job = direct.submit(job_file(tmp_path, "rebooted", nodes=2, run=SLEEPING))
    wait_saved(direct, HEAD, job, ranks=2)
    direct.reboot(HEAD)
    direct.wait_ready(HEAD)
    assert direct.job_state(job) == "LOST"
    for node in (FIRST, SECOND):
        wait_until(f"no rank on {node}", 120, partial(lambda at: left_on(direct, at, job) == "", node))
    direct.yard("resume", str(job["id"]))
    output = finish(direct, job)
    assert "rank 0 continues from step 3" in output
    assert "rank 1 continues from step 3" in output
