"""A cluster of virtual machines that stops itself, and starts again with its queue, accounting and files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, alive, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

HELLO = "name: hello\nnodes: 1\ntime: 5m\nrun: hostname\n"
IDLE_SECONDS = 60
STOP_SECONDS = 90


@pytest.fixture(scope="module", autouse=True)
def _sleeping(cluster: Project) -> Iterator[None]:
    def edit(spec: dict[str, Any]) -> None:
        spec["idle"] = {"minutes": IDLE_SECONDS // 60}
        spec["nodes"]["gpu"]["elastic"] = {"min": 1, "idle_minutes": 60}

    def restore(spec: dict[str, Any]) -> None:
        del spec["idle"]
        del spec["nodes"]["gpu"]["elastic"]

    cluster.edit(edit)
    cluster.stack("up", timeout=900)
    yield
    cluster.yard("wake")
    cluster.stack("refresh", timeout=300)
    cluster.edit(restore)
    cluster.stack("up", timeout=900)
    cluster.wait_idle()


def on(cluster: Project) -> list[str]:
    files = (cluster.folder / ".trainyard" / "run" / "local").rglob("qemu.pid")
    texts = {file.parent.name: file.read_text().strip() for file in files}
    return sorted(name for name, text in texts.items() if text.isdigit() and alive(int(text)))


def disconnect(cluster: Project) -> None:
    """Close the connections that yard keeps open."""
    config = cluster.folder / ".trainyard" / "ssh" / "local" / "config"
    for host in (HEAD, f"{HEAD}-admin"):
        subprocess.run(["ssh", "-F", str(config), "-O", "exit", host], capture_output=True, check=False)


def submit(cluster: Project, *options: str) -> dict[str, Any]:
    (cluster.folder / "hello.yaml").write_text(HELLO)
    return cluster.submit("hello.yaml", *options)


def test_a_sleeping_cluster_keeps_its_queue_accounting_and_files(cluster: Project) -> None:
    cluster.yard("drain", FIRST, SECOND, "--reason", "test")
    held = submit(cluster)
    dependent = submit(cluster, "--after", str(held["id"]))
    cluster.on(HEAD, f"sudo scontrol hold {held['id']}")
    cluster.yard("undrain", SECOND, "--force")
    cluster.on(HEAD, "echo kept | sudo tee /shared/kept")
    before = cluster.on(HEAD, "sudo sacct -X -n -P -o jobid,state")
    done = cluster.yard("sleep")
    assert on(cluster) == []
    sys.stdout.write(f"asleep after {done.seconds:.0f} s\n")
    assert "run `yard wake`" in cluster.yard("ps", check=False).out

    cluster.stack("preview", "--expect-no-changes")
    cluster.stack("refresh")
    assert "unchanged" in cluster.stack("up").out
    cluster.edit(lambda spec: spec["idle"].update(minutes=5))
    assert "run `yard wake -s local`" in cluster.stack("up", check=False).out
    cluster.edit(lambda spec: spec["idle"].update(minutes=IDLE_SECONDS // 60))
    assert on(cluster) == []

    done = cluster.yard("wake")
    sys.stdout.write(f"awake after {done.seconds:.0f} s\n")
    assert cluster.on(HEAD, "cat /shared/kept") == "kept\n"
    assert before in cluster.on(HEAD, "sudo sacct -X -n -P -o jobid,state")
    assert cluster.job_state(held) == cluster.job_state(dependent) == "PENDING"
    row = next(row for row in cluster.yard_json("nodes") if row["name"] == FIRST)
    assert row["reason"].endswith(": test"), "a drained node stays drained"
    cluster.on(HEAD, f"sudo scontrol release {held['id']}")
    wait_until("both jobs", 400, lambda: cluster.job_state(dependent) == "COMPLETED")
    cluster.yard("undrain", FIRST, "--force")


def test_a_cluster_without_connections_sleeps_and_submit_wakes_it(cluster: Project) -> None:
    wait_until("an empty queue", 120, lambda: not cluster.on(HEAD, "squeue -h"))
    disconnect(cluster)
    wait_until("the cluster to sleep", IDLE_SECONDS + STOP_SECONDS, lambda: not on(cluster), 1)
    job = submit(cluster)
    wait_until("the job", 400, lambda: cluster.job_state(job) == "COMPLETED")
