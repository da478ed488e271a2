"""yard commands for a cluster without a scheduler. A fake ssh runs all commands locally."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack, MakeProgram
from trainyard.outputs import Cluster, dumped
from yard.commands.cli import app
from yard.run.runner.agent import marked

pytestmark = [pytest.mark.engine, pytest.mark.full]

PATIENCE = 30.0
SSH = """
line=${@: -1}
start='python3 -m runner submit'
exec bash -c "${line/$start/sed -i s#/etc/trainyard#@ROOT@# job.sh yard.sh; $start}"
"""


@dataclass(frozen=True)
class Yard:
    """Runs yard for a stack without a scheduler. The stack's shared path is a local folder."""

    shared: Path

    def __call__(self, *words: str) -> tuple[int, Any]:
        result = CliRunner().invoke(app, [words[0], "--json", *words[1:]])
        lines = result.stdout.splitlines()
        return result.exit_code, json.loads(lines[-1]) if lines else result.stderr

    def job(self, run: str, more: str = "") -> Path:
        file = self.shared / "job.yaml"
        file.write_text(f"name: direct\nnodes: 2\n{more}run: |\n  {run}\n")
        return file

    def until(self, job: int, state: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while json.loads((self.shared / f"jobs/.ids/{job}/state.json").read_text())["state"] != state:
            assert time.monotonic() < deadline, (self.shared / f"jobs/.ids/{job}/job.log").read_text()
            time.sleep(0.05)

    def pids(self, job: int) -> list[int]:
        return list(marked([f"RUN_DIR={(self.shared / f'jobs/.ids/{job}').resolve()}"]))


def attach(yard: Yard) -> subprocess.Popen[str]:
    start = f"import trainyard.checkout, pathlib; trainyard.checkout.ROOT = pathlib.Path({str(yard.shared)!r})"
    line = [sys.executable, "-c", f"{start}; from yard.commands.cli import app; app()", "submit", "--attached"]
    return subprocess.Popen([*line, str(yard.job("echo here; sleep 60"))], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def yard(
    stack: FakeStack, program: MakeProgram, local_outputs: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Yard]:
    # A job that is submitted outside a repository records no commit.
    monkeypatch.chdir(stack.root)
    (stack.root / "fabric.env").write_text("GLOO_SOCKET_IFNAME=lo\n")
    program("ssh", SSH.replace("@ROOT@", str(stack.root)))
    exported = replace(local_outputs, scheduler="none", shared_path=str(stack.root))
    stack.export({"cluster": dumped(exported), "user_private_key": "not a key", "admin_private_key": "nor this"})
    made = Yard(stack.root)
    yield made
    for state in (stack.root / "jobs").glob("*/state.json"):
        left = json.loads(state.read_text())
        if left["state"] in {"PENDING", "RUNNING"}:
            os.kill(left["runner"]["pid"], signal.SIGTERM)
            made.until(left["id"], "CANCELLED")


def test_job_is_submitted_followed_and_listed(yard: Yard) -> None:
    code, last = yard("submit", str(yard.job('echo "rank $RANK of $WORLD_SIZE"')), "--follow")
    assert (code, last["state"], last["id"], last["node_list"]) == (0, "COMPLETED", 1, "yard-gpu-0,yard-gpu-1")
    assert yard("logs", "1")[1]["lines"] == ["yard: job 1, start 0, on yard-gpu-0,yard-gpu-1", "rank 0 of 2"]
    assert yard("logs", "1", "--rank", "1")[1]["lines"] == ["rank 1 of 2"]
    code, rows = yard("ps")
    assert [(row["id"], row["state"], row["why"]) for row in rows] == [
        (1, "COMPLETED", "every rank ended with exit code 0")
    ]
    assert yard("submit", str(yard.job("exit 5")))[1]["id"] == 2
    assert yard("wait", "2")[0] == 5
    assert "completed; submit a new job" in yard("resume", "1")[1]["error"]
    assert "job 9 does not exist" in yard("logs", "9")[1]["error"]


def test_cancelled_job_frees_its_nodes(yard: Yard) -> None:
    yard("submit", str(yard.job("sleep 60")))
    yard.until(1, "RUNNING")
    assert {row["name"]: row["state"] for row in yard("nodes")[1]}["yard-gpu-1"] == "allocated"
    assert yard("cancel", "1")[1] == {"cancelled": [1], "already_ended": []}
    code, ended = yard("wait", "1")
    assert (code, ended["state"]) == (143, "CANCELLED")
    assert ended.items() <= yard("ps")[1][0].items()
    assert yard.pids(1) == []
    assert {row["name"]: row["state"] for row in yard("nodes")[1]}["yard-gpu-1"] == "idle"
    assert yard("cancel", "1")[1] == {"cancelled": [], "already_ended": [1]}


def test_job_without_runner_is_lost_and_can_be_resumed(yard: Yard) -> None:
    yard("submit", str(yard.job("[[ $RESTART_COUNT == 1 ]] || sleep 60; echo start $RESTART_COUNT")))
    yard.until(1, "RUNNING")
    os.kill(json.loads((yard.shared / "jobs/.ids/1/state.json").read_text())["runner"]["pid"], signal.SIGKILL)
    code, ended = yard("wait", "1")
    assert (code, ended["state"]) == (1, "LOST")
    assert "`yard resume 1`" in ended["why"]
    assert yard("resume", "1")[1]["id"] == 1
    assert yard("wait", "1")[0] == 0
    assert "start 1" in yard("logs", "1")[1]["lines"]


@pytest.mark.parametrize("seen", ["submitted", "here"])
def test_interrupt_cancels_an_attached_job(seen: str, yard: Yard) -> None:
    attached = attach(yard)
    assert attached.stdout is not None
    with attached.stdout:
        while seen not in attached.stdout.readline():
            pass
        attached.send_signal(signal.SIGINT)
        assert attached.wait(PATIENCE) == 130
    assert yard.pids(1) == []
    assert yard("ps")[1][0]["state"] == "CANCELLED"


def test_own_program_runs_in_a_copy_of_its_directory(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = yard.shared / "my project"
    folder.mkdir()
    (folder / "own_module.py").write_text("NAME = 'mine'\n")
    (folder / "train.py").write_text("import os, sys, own_module\nprint(own_module.NAME, sys.argv[1:], os.getcwd())\n")
    monkeypatch.chdir(folder)
    options = ("--nodes", "2", "--launcher", "srun", "--array", "3-4", "--name", "sweep")
    assert yard("submit", "train.py", *options, "--", "$ARRAY_INDEX", "a b")[0] == 0
    assert yard("submit", "--nodes", "2", "--", "cat", "own_module.py")[0] == 0
    assert [yard("wait", str(job))[0] for job in (1, 2, 3)] == [0, 0, 0]
    runs = {row["id"]: row["run_dir"] for row in yard("ps")[1]}
    for job, element in ((1, "3"), (2, "4")):
        printed = f"mine ['{element}', 'a b'] {runs[job]}/code"
        assert yard("logs", str(job))[1]["lines"][-1] == printed
        assert yard("logs", str(job), "--rank", "1")[1]["lines"] == [printed]
    assert yard("logs", "3")[1]["lines"][-1] == "NAME = 'mine'"


@pytest.mark.parametrize(("option", "value"), [("--after", "1"), ("--array", "0-3%2")])
def test_options_of_slurm_are_refused(option: str, value: str, yard: Yard) -> None:
    code, answer = yard("submit", str(yard.job("true")), option, value)
    assert code == 1
    assert f"{option.removeprefix('--')}: " in answer["error"]
