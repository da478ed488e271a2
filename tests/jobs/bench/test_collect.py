"""Benchmarks submitted to a cluster that answers as Slurm does: the right jobs, and their words made records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from components.outputs import ClusterOutputs, read_outputs
from jobs.cli import app
from jobs.facts import cluster_of
from tests.jobs.conftest import FakeStack, MakeProgram, Program, outputs

# Takes a submission, says that each job has ended well, and reads files from a folder of this machine.
SSH = r"""
line="${!#}"
case $line in
  *sbatch*)
    d={root}/sent/$(ls {root}/sent | wc -l)
    mkdir "$d"
    tar -xC "$d" --strip-components=1
    ls {root}/sent | wc -l ;;
  *"exec bash -c"*) cat {root}/job.log; printf '\x1eJobId=1 JobName=x JobState={state} ExitCode=0:0 Restarts=0\n' ;;
  *scontrol*) echo 'JobId=1 JobName=x JobState=COMPLETED ExitCode=0:0 Restarts=0' ;;
  cat*) cat {root}/output ;;
esac
"""


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def cluster(stack: FakeStack, program: MakeProgram) -> Program:
    (stack.root / "sent").mkdir()
    (stack.root / "job.log").write_text("words\n")
    return program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", "COMPLETED"))


def scripts(stack: FakeStack) -> list[str]:
    return [(path / "job.sbatch").read_text() for path in sorted((stack.root / "sent").iterdir())]


REPORT = {"ranks": 2, "backend": "gloo", "avg_busbw": 1.0}
ROW = {"size": 1 << 30, "count": 1 << 28, "type": "float32", "time_us": 9e5, "algbw": 1.2, "busbw": 1.2, "wrong": 0}


def test_an_all_reduce_is_submitted_kept_and_shown(cluster: Program, stack: FakeStack, tmp_path: Path) -> None:
    (stack.root / "output").write_text(json.dumps({**REPORT, "results": [ROW]}))
    code, out, err = yard("nccl", "--out", str(tmp_path / "kept"), "--", "--iters", "3")
    assert code == 0, err
    assert "1G" in out
    [script] = scripts(stack)
    assert "--nodes=2" in script
    assert "--iters 3" in script
    [kept] = (tmp_path / "kept").glob("nccl-yard-*.json")
    assert json.loads(kept.read_text())["rows"] == [ROW]
    assert yard("nccl", "--from", str(kept))[0] == 0


@pytest.mark.parametrize(("nodes", "floor"), [("1", 300), ("4", 200)])
def test_the_floor_for_the_number_of_nodes_fails_a_slow_one(
    nodes: str, floor: int, cluster: Program, stack: FakeStack
) -> None:
    wide: ClusterOutputs = outputs(8, "h100", 4, 300.0, 200.0)
    stack.export({"cluster": wide.model_dump(mode="json"), "ssh_private_key": "not a key"})
    (stack.root / "output").write_text(json.dumps({**REPORT, "ranks": 32, "results": [ROW]}))
    code, _, err = yard("nccl", "--nodes", nodes)
    assert code == 1
    assert f"FAILED: busbw 1.20 GB/s at 1073741824 bytes is below {floor} GB/s" in err
    assert "-e 8G" in scripts(stack)[0]


def test_scaling_runs_on_one_node_first(cluster: Program, stack: FakeStack) -> None:
    metrics: dict[str, Any] = {"step": 30, "loss": 5.0, "step_ms": 10.0, "tokens_per_s": 800.0}
    (stack.root / "output").write_text(json.dumps(metrics) + "\n")
    (stack.root / "job.log").write_text('step 30\n{"summary": true, "tokens_per_s": 800.0, "hardware_tflops": 0.1}\n')
    code, out, err = yard("scaling", "--json", "--min", "0.9")
    answer = json.loads(out)
    assert [row["nodes"] for row in answer["rows"]] == [1, 2]
    # Both took the same time, so the second did twice the work at half the speed.
    assert [row["efficiency"] for row in answer["rows"]] == [1.0, 0.5]
    assert (code, answer["passed"]) == (1, False)
    one, two = scripts(stack)
    assert ("--nodes=1" in one, "--nodes=2" in two) == (True, True)
    assert ("--batch 4 " in one, "--batch 8 " in two) == (True, True)
    assert err.count("yard: job ") == 2


def test_a_failed_job_is_said(stack: FakeStack, cluster: Program, program: MakeProgram) -> None:
    program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", "FAILED"))
    code, _, err = yard("train")
    assert code == 1
    assert "FAILED: `yard logs 1` tells why; nothing was measured" in err


@pytest.mark.parametrize(
    ("words", "said"), [(("--nodes", "3"), "has 2 nodes, not 3"), (("--group", "x"), "no node group")]
)
def test_nodes_that_are_not_there_are_said(words: tuple[str, ...], said: str, cluster: Program) -> None:
    code, _, err = yard("nccl", *words)
    assert code == 1
    assert said in err


def test_outputs_without_pair_thresholds_are_read(local_outputs: ClusterOutputs) -> None:
    raw = local_outputs.model_copy(update={"thresholds": {"gpu": 228.0}}).model_dump(mode="json")
    del raw["pair_thresholds"]
    assert read_outputs(raw).pair_thresholds == {}
    # Two nodes are never judged by the floor of one.
    cluster = cluster_of(raw)
    assert (cluster.busbw_floor("gpu", 1), cluster.busbw_floor("gpu", 2)) == (228.0, None)
