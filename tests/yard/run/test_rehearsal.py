"""`yard submit --dry-run` for a stack that has no outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import yard.commands.jobs
from components.stackfile.read import read_stack
from tests.components.platforms.recording import stack_text
from tests.yard.conftest import FakeStack, MakeProgram
from tests.yard.test_cli import yard as run_yard
from trainyard.errors import StackError
from yard.preview.rehearsal import rehearse as planned
from yard.stack.workspace import stack_names

NO_STACK = "pulumi cannot read stack 'x': no stack named 'x' found; deploy it first"


@pytest.fixture
def undeployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No stack has outputs. The current directory contains a program and a Slurm script."""

    def fail(*_: Any) -> None:
        raise StackError(NO_STACK)

    monkeypatch.setattr(yard.commands.jobs, "remote_of", fail)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rehearse(*words: str) -> Any:
    code, out, err = run_yard("submit", "--dry-run", "--json", *words)
    assert code == 0, err
    assert err.startswith("yard: dry run with the plan of ")
    assert err.endswith("without a cluster: the stack does not exist yet\n")
    return json.loads(out)


@pytest.mark.parametrize("stack", stack_names())
def test_every_stack_file_can_be_rehearsed(stack: str, undeployed: Path) -> None:
    seen = rehearse("train.py", "--stack", stack)
    assert seen["estimate"]["source"] == "plan"
    assert seen["estimate"]["file"] == f"stacks/Pulumi.{stack}.yaml"
    assert any(name.startswith("job.s") for name in seen["files"])


def test_a_qualified_stack_is_rehearsed_from_its_file(undeployed: Path) -> None:
    found = rehearse("train.py", "--stack", "acme/trainyard/azure-a100")["estimate"]
    assert found["file"] == "stacks/Pulumi.azure-a100.yaml"


def test_estimate_has_the_prices_of_the_nodes(undeployed: Path) -> None:
    found = rehearse("train.py", "--stack", "azure-h100", "--nodes", "2", "--time", "30m")["estimate"]
    assert (found["nodes"], found["limit_s"], found["time_s"]) == (2, 1800, None)
    assert found["cluster_usd_per_hour"] > found["job_usd_per_hour"] > 100
    assert found["usd_at_limit"] == pytest.approx(found["job_usd_per_hour"] / 2, abs=0.01)
    array = rehearse("train.py", "--stack", "azure-h100", "--nodes", "2", "--time", "30m", "--array", "1-4")["estimate"]
    assert array["usd_at_limit"] == pytest.approx(found["usd_at_limit"] * 4, abs=0.05)


def test_unknown_values_are_unknown(undeployed: Path) -> None:
    found = rehearse("train.py", "--stack", "lambda-a6000")["estimate"]
    assert (found["job_usd_per_hour"], found["usd_at_limit"], found["time_s"]) == (None, None, None)
    script = rehearse("job.sbatch", "--stack", "azure-a100")["estimate"]
    assert (script["nodes"], script["job_usd_per_hour"]) == (None, None)


def test_spot_prices_do_not_limit_the_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Pulumi.gcp-a2.yaml"
    file.write_text(stack_text("gcp-a2", nodes__gpu__capacity={"kind": "spot"}))
    assert planned("gcp-a2", "").node_usd["gpu"] is not None
    assert planned("gcp-a2", "").cluster.usd_per_hour is not None
    monkeypatch.setattr("yard.preview.rehearsal.read_stack", lambda path: read_stack(file))
    spot = planned("gcp-a2", "")
    assert (spot.node_usd["gpu"], spot.cluster.usd_per_hour) == (None, None)


def test_text_says_that_the_plan_was_used(undeployed: Path) -> None:
    code, out, _ = run_yard("submit", "train.py", "--dry-run", "--stack", "azure-h100")
    assert code == 0
    assert "# dry run with the plan of stacks/Pulumi.azure-h100.yaml, without a cluster\n" in out
    assert "# time: unknown, because no run on these machines is recorded; each start ends after 60 min" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.py", "--stack", "azure-h100", "--nodes", "9"), "the job needs 9 nodes, but group 'gpu' has 2"),
        (("opt-175b", "--stack", "azure-h100", "--nodes", "2"), "such nodes are sufficient"),
        (("train.py", "--stack", "nowhere"), "stacks/Pulumi.nowhere.yaml does not exist"),
    ],
)
def test_job_that_does_not_fit_the_plan_is_refused(words: tuple[str, ...], message: str, undeployed: Path) -> None:
    code, _, err = run_yard("submit", "--dry-run", *words)
    assert code == 1
    assert message in err


def test_submission_needs_a_cluster(undeployed: Path) -> None:
    code, _, err = run_yard("submit", "train.py", "--stack", "azure-h100")
    assert (code, err) == (1, f"yard: {NO_STACK}\n")


def test_rehearsal_needs_a_checkout(stack: FakeStack, program: MakeProgram) -> None:
    program("pulumi", "echo 'error: no stack named x' >&2; exit 1")
    code, _, err = run_yard("submit", "hello", "--dry-run")
    assert code == 1
    assert "no stack named x" in err


@pytest.mark.parametrize(("stack", "home"), [("local", "/home"), ("lambda-a6000", "/home/trainer")])
def test_existing_hosts_mount_only_the_home_of_the_job_user(stack: str, home: str) -> None:
    """Other users of existing hosts keep their homes."""
    assert planned(stack, "not deployed").cluster.home_path == home
