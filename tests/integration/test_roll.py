"""`yard roll` on virtual machines while a job writes checkpoints."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.project import Project, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

HEAD, WORKERS = "it-head", ("it-gpu-0", "it-gpu-1")
JOB = """
name: steps
nodes: 1
time: 30m
retries: 0
checkpoint_dir: checkpoints
run: |
  trap 'echo $step >$CHECKPOINT_DIR/step; exit 0' USR2
  mkdir -p $CHECKPOINT_DIR
  step=$(cat $CHECKPOINT_DIR/step 2>/dev/null || echo 0)
  while ((step++ < 400)); do sleep 1; done
"""


def machine_ids(cluster: Project) -> list[str]:
    """Return the instance id of each worker. A replaced machine has a new id."""
    return [cluster.on(node, "cat /var/lib/cloud/data/instance-id").strip() for node in WORKERS]


def test_a_group_is_replaced_under_a_checkpointing_job(cluster: Project) -> None:
    (cluster.folder / "steps.yaml").write_text(JOB)
    job = str(cluster.yard_json("submit", "steps.yaml")["id"])
    before = machine_ids(cluster)

    with (cluster.folder / "cloud-init/files/usr/local/lib/trainyard/bootstrap").open("a") as bootstrap:
        bootstrap.write(": another version\n")
    cluster.stack("up")
    assert machine_ids(cluster) == before, "an upgrade replaced a machine"

    # The first roll is interrupted while Pulumi replaces the first node.
    roll = cluster.start("python", "-m", "yard", "roll", "gpu", "--checkpoint")
    assert roll.stdout
    for line in roll.stdout:
        if "creating" in line or "replacing" in line or "deleting" in line:
            break
    os.killpg(roll.pid, signal.SIGINT)
    roll.communicate(timeout=300)
    assert roll.returncode != 0

    done = cluster.yard("roll", "gpu", "--checkpoint", timeout=900)
    assert "all 2 nodes in group gpu are replaced and in service" in done.out
    assert not set(before) & set(machine_ids(cluster))
    assert cluster.on(WORKERS[0], "tail -1 /usr/local/lib/trainyard/bootstrap").strip() == ": another version"
    cluster.yard("wait", job, timeout=900)
    (found,) = [entry for entry in cluster.yard_json("ps") if str(entry["id"]) == job]
    assert found["state"] == "COMPLETED"
    wait_until("idle nodes", 120, lambda: "drain" not in cluster.on(HEAD, "sinfo -h -N -o %T"))
