"""`pulumi up` with a changed machine type, for busy and idle machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.project import Project, wait_until
from trainyard.machines import END_JOBS

pytestmark = [pytest.mark.integration, pytest.mark.full]

HEAD, WORKERS = "it-head", ("it-gpu-0", "it-gpu-1")


def set_machine(cluster: Project, machine: str) -> None:
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(machine=machine))


def machine_ids(cluster: Project) -> list[str]:
    """Return the disk id of each worker. A replaced machine has a new id."""
    return [cluster.on(node, "cat /var/lib/cloud/data/instance-id").strip() for node in WORKERS]


def running_job(cluster: Project, folder: Path) -> str:
    """Submit a job that sleeps on one worker, wait until it runs, and return its id."""
    file = folder / "sleeper.yaml"
    file.write_text("name: sleeper\nnodes: 1\ntime: 30m\nrun: sleep 1500\n")
    job: dict[str, Any] = cluster.yard_json("submit", str(file))
    wait_until("the job to run", 120, lambda: state(cluster, str(job["id"])) == "RUNNING")
    return str(job["id"])


def state(cluster: Project, job: str) -> str:
    return cluster.on(HEAD, f"squeue -h -j {job} -o %T 2>/dev/null || true").strip()


def test_up_replaces_busy_machines_only_on_request(cluster: Project, tmp_path: Path) -> None:
    job = running_job(cluster, tmp_path)
    first = machine_ids(cluster)

    set_machine(cluster, "vm-gpu2-large")
    assert "`pulumi up` will refuse this" in cluster.stack("preview").out
    refused = cluster.stack("up", check=False)
    assert refused.code != 0
    assert f"job {job} (sleeper) of trainer on it-gpu-0" in refused.out
    assert f"--config {END_JOBS}={job}`" in refused.out
    assert state(cluster, job) == "RUNNING"
    assert machine_ids(cluster) == first

    cluster.yard("cancel", job)
    wait_until("the job's end", 60, lambda: state(cluster, job) == "")
    cluster.stack("up", timeout=600)
    second = machine_ids(cluster)
    assert not set(first) & set(second)

    job = running_job(cluster, tmp_path)
    set_machine(cluster, "vm-gpu2")
    cluster.stack("up", "--config", f"{END_JOBS}={job}", timeout=600)
    assert not set(second) & set(machine_ids(cluster))
    cluster.yard("cancel", job, check=False)
