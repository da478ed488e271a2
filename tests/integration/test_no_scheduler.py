"""The cluster that the other tests share, without its scheduler from here on: what yard's own runner survives there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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
from tests.integration.test_cluster import FIRST, HEAD, SECOND

pytestmark = [pytest.mark.integration, pytest.mark.full]

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def direct(cluster: Project) -> Project:
    """The cluster after its stack file says `scheduler: none`."""
    cluster.edit(lambda spec: spec.update(scheduler="none"))
    cluster.stack("up", timeout=900)
    return cluster


_LAUNCHERS = [launcher for launcher in ON_THE_MACHINES if not launcher.startswith("torchrun")]
"""Torch takes long to start on emulated machines: test_job_recovery.py has its launchers, under Slurm."""


@pytest.fixture(scope="module")
def killed(direct: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A job for each launcher, all submitted."""
    folder = tmp_path_factory.mktemp("jobs")
    return {launcher: submit(direct, counting(folder, launcher)) for launcher in _LAUNCHERS}


def state_of(cluster: Project, job: dict[str, Any]) -> str:
    """Return the state that yard shows."""
    return str({row["id"]: row["state"] for row in cluster.yard_json("ps")}[job["id"]])


def test_a_cluster_lets_go_of_slurm(direct: Project) -> None:
    assert json.loads(direct.stack("outputs").out)["cluster"]["scheduler"] == "none"
    assert direct.on(HEAD, "cat /job/hostfile") == f"{FIRST} slots=2\n{SECOND} slots=2\n"
    assert (
        direct.on(HEAD, "systemctl is-active slurmctld slurmdbd mariadb munge", check=False).split() == ["inactive"] * 4
    )
    assert direct.on(FIRST, "systemctl is-active slurmd munge", check=False).split() == ["inactive"] * 2
    direct.stack("preview", "--expect-no-changes")


@pytest.mark.parametrize("launcher", _LAUNCHERS)
def test_a_killed_rank_costs_no_more_than_a_start(
    launcher: str, direct: Project, killed: dict[str, dict[str, Any]]
) -> None:
    said = finish(direct, killed[launcher])
    assert "rank 1 begins at step 0" in said
    assert "rank 1 begins at step 3" in said
    assert starts(direct, HEAD, killed[launcher]) == [f"{FIRST},{SECOND}"] * 2


def test_ctrl_c_leaves_nothing_on_any_host(direct: Project, tmp_path: Path) -> None:
    file = job_file(tmp_path, "attached", nodes=2, run=SLEEPING)
    attached = direct.start("python", "-m", "jobs", "submit", "--attached", file)
    assert attached.stdout is not None
    said = ""
    while "has saved" not in said:
        line = attached.stdout.readline()
        assert line, said
        said += line
    attached.send_signal(signal.SIGINT)
    rest, _ = attached.communicate(timeout=120)
    assert attached.returncode == 130, said + rest
    job = direct.yard_json("ps")[0]
    assert (job["name"], job["state"]) == ("attached", "CANCELLED")
    assert [left_on(direct, node, job) for node in (HEAD, FIRST, SECOND)] == ["", "", ""]


@pytest.fixture
def frozen(direct: Project) -> Iterator[list[int]]:
    """Processes that were stopped: they go on at the end."""
    stopped: list[int] = []
    yield stopped
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_node_costs_no_more_than_a_start(direct: Project, frozen: list[int], tmp_path: Path) -> None:
    job = submit(direct, job_file(tmp_path, "frozen", run=SLEEPING))
    wait_saved(direct, HEAD, job)
    frozen.append(direct.pid(FIRST))
    os.kill(frozen[0], signal.SIGSTOP)
    said = finish(direct, job)
    assert f"lost {FIRST}: the job is started again" in said
    assert "rank 0 goes on from step 3" in said
    assert starts(direct, HEAD, job) == [FIRST, SECOND]
    os.kill(frozen[0], signal.SIGCONT)
    wait_until("no rank of the first start", 120, lambda: left_on(direct, FIRST, job) == "")


def test_a_job_that_its_head_left_alone_is_lost_and_goes_on_when_resumed(direct: Project, tmp_path: Path) -> None:
    job = submit(direct, job_file(tmp_path, "rebooted", nodes=2, run=SLEEPING))
    wait_saved(direct, HEAD, job, ranks=2)
    before = direct.on(HEAD, BOOT_ID).strip()
    direct.on(HEAD, "sudo systemctl reboot", check=False)
    wait_until("the head's next boot", 240, lambda: direct.on(HEAD, BOOT_ID, check=False).strip() not in {"", before})
    ready = '"state":"ready"'
    wait_until("the head", 240, lambda: ready in direct.on(HEAD, "cat /var/lib/trainyard/status.json", check=False))
    assert state_of(direct, job) == "LOST"
    for node in (FIRST, SECOND):
        wait_until(f"no rank on {node}", 120, partial(lambda at: left_on(direct, at, job) == "", node))
    direct.yard("resume", str(job["id"]))
    said = finish(direct, job)
    assert "rank 0 goes on from step 3" in said
    assert "rank 1 goes on from step 3" in said
