"""Booted stacks whose machines, services and zone fail. Each fault ends as the guides say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.project import wait_until
from tests.integration.survivors import SLEEPING, WARNED, finish, job_file, wait_saved
from tests.integration.test_booted import BootedProject, machine

pytestmark = [pytest.mark.integration, pytest.mark.full]

SLOW, LATE = 30, 240
"""Seconds until the metadata service answers a request, and until the file server answers after its boot."""
SLOW_ANSWERS = {"gcp": 3, "hopper": 2}
"""Least number of slow answers for which a boot waits."""

on_google = pytest.mark.parametrize("cloud", ["gcp"], indirect=True)


@pytest.fixture(scope="module", params=sorted(SLOW_ANSWERS))
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedProject]:
    """A stack with on-demand nodes, which the cloud starts again after a failure of their host."""
    project = BootedProject(tmp_path_factory.mktemp("faults") / "project", request.param)
    project.edit(lambda spec: spec["nodes"]["gpu"].pop("capacity", None))
    first, second = project.nodes
    project.faults(
        {"fault": "stockout", "of": "*:Instance", "name": second, "times": 1},
        {"fault": "slow_metadata", "name": first, "seconds": SLOW},
        {"fault": "late_storage", "name": "*-shared", "seconds": LATE},
    )
    try:
        if project.provider == "gcp":
            failed = project.cloud("up", check=False)
            assert f"{second} (a2-highgpu-8g) in us-central1-f" in failed
            assert f"{second} could not be created. Other resources in the stack" in failed
            assert "ZONE_RESOURCE_POOL_EXHAUSTED" in failed
            assert "Traceback" not in failed
        project.cloud("up")
        project.faults()
        yield project
    finally:
        project.cloud("destroy")


def timeline(cloud: BootedProject, name: str) -> list[tuple[float, str]]:
    """Return the seconds since the first boot and the stages of a machine."""
    rows = (line.split() for line in cloud.on(name, "cat /var/lib/trainyard/timeline").splitlines())
    return [(float(row[0]), row[1]) for row in rows if len(row) > 1]


def states(cloud: BootedProject) -> str:
    return cloud.on(cloud.head, "sinfo -h -N -o '%N=%t'", check=False)


def wait_idle(cloud: BootedProject) -> None:
    wait_until(
        "idle nodes", 400, lambda: all(re.search(rf"{node}=idle\b(?!\*)", states(cloud)) for node in cloud.nodes)
    )


def test_up_waits_for_slow_metadata_and_late_storage(cloud: BootedProject) -> None:
    """`up` has completed after a stockout, although cloud-init waited for each answer and the head for its files."""
    first, second = (timeline(cloud, node)[0][0] for node in cloud.nodes)
    assert first - second > SLOW_ANSWERS[cloud.cluster] * SLOW
    stages = timeline(cloud, cloud.head)
    (begin,) = (index for index, (_, stage) in enumerate(stages) if stage == "50-storage")
    assert stages[begin + 1][0] - stages[begin][0] > SLOW
    wait_idle(cloud)


@on_google
def test_a_job_continues_after_a_host_error(cloud: BootedProject, tmp_path: Path) -> None:
    name = cloud.nodes[1]
    old = cloud.boot_id(name)
    job = cloud.submit(job_file(tmp_path, "crash", nodes=2, gpus_per_node=0, run=SLEEPING))
    wait_saved(cloud, cloud.head, job, ranks=2)
    cloud.faults({"fault": "host_error", "name": name})
    cloud.stack("refresh", "--offline", "--boot", "--expect-no-changes")
    wait_until("the node to be lost", 120, lambda: "TY:gone: " in cloud.on(cloud.head, "sinfo -R"))
    output = finish(cloud, job, 600)
    assert "rank 0 continues from step 3" in output
    assert "rank 1 continues from step 3" in output
    wait_idle(cloud)
    assert cloud.boot_id(name) not in {"", old}


@on_google
def test_a_job_continues_after_host_maintenance(cloud: BootedProject, tmp_path: Path) -> None:
    name = cloud.nodes[0]
    job = cloud.submit(job_file(tmp_path, "moved", nodes=2, gpus_per_node=0, run=WARNED))
    log = f"sudo cat {job['run_dir']}/job.log"
    wait_until("the job", 180, lambda: "waits for the warning" in cloud.on(cloud.head, log, check=False))
    cloud.faults({"fault": "maintenance", "name": name, "seconds": 60})
    cloud.stack("refresh", "--offline", "--boot", "--expect-no-changes")
    reasons = cloud.on(cloud.head, "sinfo -h -R -o %E")
    assert "TY:event: the cloud announces termination for host maintenance" in reasons
    output = finish(cloud, job, 600)
    assert "a node leaves, checkpoint written: restarting the job" in output
    assert "continues after the warning" in output
    wait_idle(cloud)


@on_google
def test_a_replaced_head_keeps_the_shared_files(cloud: BootedProject, tmp_path: Path) -> None:
    """With Filestore, Slurm's queue is lost, but the files remain, and the nodes rejoin without a restart."""
    head, node = cloud.head, cloud.nodes[0]
    wait_idle(cloud)
    cloud.on(head, "echo kept | sudo tee /shared/kept /home/kept")
    old_head, old_node = cloud.boot_id(head), cloud.boot_id(node)
    cloud.cloud("up", "--replace", machine(cloud, head).urn)
    assert cloud.boot_id(head) not in {"", old_head}
    assert cloud.boot_id(node) == old_node
    assert cloud.on(head, "cat /shared/kept /home/kept").split()[-2:] == ["kept", "kept"]
    wait_idle(cloud)
    job = cloud.submit(job_file(tmp_path, "after", nodes=2, gpus_per_node=0, run="cat /shared/kept"))
    assert "kept" in finish(cloud, job, 300)
