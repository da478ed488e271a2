"""Replacement of machines: `pulumi up` with a changed machine type, and `yard roll` while a job writes checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.platforms.local.paths import cache_folder
from tests.integration.project import FIRST, HEAD, SECOND, Project, wait_until
from trainyard.machines import END_JOBS
from yard.stack.pulumi import end_session, session_members

pytestmark = [pytest.mark.integration, pytest.mark.full]

WORKERS = (FIRST, SECOND)
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


def image_id(cluster: Project) -> str:
    code = "from components.platforms.local.image import image_id; print(image_id())"
    return cluster.run("python", "-c", code).out.strip()


def set_machine(cluster: Project, machine: str) -> None:
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(machine=machine))


def test_up_replaces_busy_machines_only_on_request(cluster: Project) -> None:
    job = cluster.sleeper()
    first = machine_ids(cluster)

    set_machine(cluster, "vm-gpu2-large")
    assert "`pulumi up` will refuse this" in cluster.stack("preview").out
    refused = cluster.stack("up", check=False)
    assert refused.code != 0
    assert f"job {job} (sleeper) of trainer on it-gpu-0" in refused.out
    assert f"--config {END_JOBS}={job}`" in refused.out
    assert cluster.queued(job) == "RUNNING"
    assert machine_ids(cluster) == first

    cluster.yard("cancel", job)
    wait_until("the job's end", 60, lambda: cluster.queued(job) == "")
    cluster.stack("up", timeout=600)
    second = machine_ids(cluster)
    assert not set(first) & set(second)

    job = cluster.sleeper()
    set_machine(cluster, "vm-gpu2")
    cluster.stack("up", "--config", f"{END_JOBS}={job}", timeout=600)
    assert not set(second) & set(machine_ids(cluster))
    cluster.yard("cancel", job, check=False)


@pytest.fixture(scope="session")
def new_image(cluster: Project) -> Iterator[str]:
    """Change the recipe of the golden image, and provide a copy of the old image as the new image. Yields its id."""
    images = cache_folder() / "images"
    old = images / image_id(cluster)
    with (cluster.folder / "components/platforms/local/recipe/customise").open("a") as recipe:
        recipe.write("# another recipe\n")
    new = images / image_id(cluster)
    shutil.copytree(old, new, copy_function=os.link, ignore=shutil.ignore_patterns("disks"))
    yield new.name
    # Running machines keep the deleted files open.
    shutil.rmtree(new)


def start_roll(cluster: Project, *until: str) -> subprocess.Popen[str]:
    """Start a roll, and wait for a line that contains one of the texts."""
    roll = cluster.start("python", "-m", "yard", "roll", "gpu", "--yes", "--checkpoint")
    assert roll.stdout
    for line in roll.stdout:
        if any(text in line for text in until):
            return roll
    raise AssertionError(f"the roll has ended with {roll.wait()} before {until}")


def test_a_group_is_replaced_under_a_checkpointing_job(cluster: Project, new_image: str) -> None:
    (cluster.folder / "steps.yaml").write_text(JOB)
    job = str(cluster.yard_json("submit", "steps.yaml")["id"])
    before = machine_ids(cluster)

    with (cluster.folder / "cloud-init/files/usr/local/lib/trainyard/bootstrap").open("a") as bootstrap:
        bootstrap.write(": another version\n")
    cluster.stack("up")
    assert machine_ids(cluster) == before, "an upgrade replaced a machine"

    # The first roll is interrupted while Pulumi replaces the first node.
    roll = start_roll(cluster, "creating", "replacing", "deleting")
    os.killpg(roll.pid, signal.SIGINT)
    roll.communicate(timeout=300)
    assert roll.returncode != 0

    done = cluster.yard("roll", "gpu", "--yes", "--checkpoint", timeout=900)
    assert "all 2 nodes in group gpu are replaced and in service" in done.out
    assert not set(before) & set(machine_ids(cluster))
    assert cluster.on(WORKERS[0], "tail -1 /usr/local/lib/trainyard/bootstrap").strip() == ": another version"
    # Each file in this folder contains the path of a disk that is based on the image.
    disks = (cache_folder() / "images" / new_image / "disks").iterdir()
    assert {Path(disk.read_text()).parent.name for disk in disks} == set(WORKERS)
    cluster.yard("wait", job, timeout=900)
    (found,) = [entry for entry in cluster.yard_json("ps") if str(entry["id"]) == job]
    assert found["state"] == "COMPLETED"
    wait_until("idle nodes", 120, lambda: "drain" not in cluster.on(HEAD, "sinfo -h -N -o %T"))


@pytest.mark.parametrize("pulumi_too", [False, True], ids=["yard", "yard and pulumi"])
def test_a_killed_roll_is_continued(cluster: Project, pulumi_too: bool) -> None:
    before = machine_ids(cluster)
    roll = start_roll(cluster, "Vm it-local-it-gpu-0 creating")
    pulumi = int(subprocess.check_output(["pgrep", "-P", str(roll.pid), "pulumi"], text=True))
    os.kill(roll.pid, signal.SIGKILL)
    for pid in session_members(pulumi) if pulumi_too else ():
        os.kill(pid, signal.SIGKILL)
    try:
        # Without pulumi_too, pulumi replaces the machine and waits until it is ready.
        roll.communicate(timeout=30 if pulumi_too else 900)
    finally:
        # The fixture cannot remove the machines while pulumi uses the stack.
        end_session(pulumi)

    done = cluster.yard("roll", "gpu", "--yes", "--checkpoint", timeout=900)
    assert "finishing the interrupted replacement of it-gpu-0" in done.out
    assert "all 2 nodes in group gpu are replaced and in service" in done.out
    assert not set(before) & set(machine_ids(cluster))
