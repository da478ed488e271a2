"""Job recovery without a scheduler. The tests change the shared cluster to `scheduler: none`, and back to Slurm."""

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
    counting,
    finish,
    job_file,
    left_on,
    starts,
    wait_saved,
)

pytestmark = [pytest.mark.integration, pytest.mark.full]


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


_LAUNCHERS = [launcher for launcher in ON_THE_MACHINES if not launcher.startswith("torchrun")]
"""torch starts slowly on emulated machines, so its launchers are only tested under Slurm, in test_job_recovery.py."""


@pytest.fixture(scope="module")
def killed(direct: Project, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("jobs")
    return {launcher: direct.submit(counting(folder, launcher)) for launcher in _LAUNCHERS}


def test_slurm_is_stopped(direct: Project) -> None:
    assert json.loads(direct.stack("outputs").out)["cluster"]["scheduler"] == "none"
    assert direct.on(HEAD, "cat /job/hostfile") == f"{FIRST} slots=2\n{SECOND} slots=2\n"
    assert (
        direct.on(HEAD, "systemctl is-active slurmctld slurmdbd mariadb munge", check=False).split() == ["inactive"] * 4
    )
    assert direct.on(FIRST, "systemctl is-active slurmd munge", check=False).split() == ["inactive"] * 2
    direct.stack("preview", "--expect-no-changes")


@pytest.mark.parametrize("launcher", _LAUNCHERS)
def test_job_continues_after_a_killed_rank(launcher: str, direct: Project, killed: dict[str, dict[str, Any]]) -> None:
    output = finish(direct, killed[launcher])
    assert "rank 1 begins at step 0" in output
    assert "rank 1 begins at step 3" in output
    assert starts(direct, HEAD, killed[launcher]) == [f"{FIRST},{SECOND}"] * 2


def test_ctrl_c_leaves_no_process_on_any_host(direct: Project, tmp_path: Path) -> None:
    file = job_file(tmp_path, "attached", nodes=2, run=SLEEPING)
    attached = direct.start("python", "-m", "yard", "submit", "--attached", file)
    assert attached.stdout is not None
    output = ""
    while "has saved" not in output:
        line = attached.stdout.readline()
        assert line, output
        output += line
    attached.send_signal(signal.SIGINT)
    rest, _ = attached.communicate(timeout=120)
    assert attached.returncode == 130, output + rest
    job = direct.yard_json("ps")[0]
    assert (job["name"], job["state"]) == ("attached", "CANCELLED")
    assert [left_on(direct, node, job) for node in (HEAD, FIRST, SECOND)] == ["", "", ""]


def test_job_continues_after_a_frozen_node(direct: Project, frozen: list[int], tmp_path: Path) -> None:
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
