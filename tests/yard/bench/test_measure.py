"""Benchmark runs on a fake cluster: submitted jobs, records and failures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack, MakeProgram, Program, outputs
from trainyard.errors import BenchError
from trainyard.outputs import Cluster, dumped, read_outputs
from yard.bench.measure import field_of
from yard.commands.cli import app

# Body of a fake ssh that stores submissions, reports that each job has ended, and prints files from a local folder.
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
  *environment.json*) echo ready /shared/envs/torch-1234 ;;
esac
"""


def yard(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
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


def test_an_all_reduce_is_submitted_saved_and_shown(cluster: Program, stack: FakeStack, tmp_path: Path) -> None:
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


def test_the_environment_of_the_recipe_can_be_replaced(stack: FakeStack, cluster: Program) -> None:
    wide: Cluster = outputs(8, "h100", 4, None)
    stack.export({"cluster": dumped(wide), "user_private_key": "not a key", "admin_private_key": "nor this"})
    (stack.root / "output").write_text(json.dumps({**REPORT, "ranks": 32, "results": [ROW]}))
    assert yard("nccl")[0] == 0
    assert yard("nccl", "--env", "none")[0] == 0
    first, second = sorted((stack.root / "sent").iterdir())
    assert (first / "environment").read_text() == "/shared/envs/torch-1234\n"
    assert not (second / "environment").exists()


@pytest.mark.parametrize(("nodes", "floor"), [("1", 300), ("4", 200)])
def test_a_slow_run_fails_the_floor_for_its_nodes(nodes: str, floor: int, cluster: Program, stack: FakeStack) -> None:
    wide: Cluster = outputs(8, "h100", 4, 300.0, 200.0)
    stack.export({"cluster": dumped(wide), "user_private_key": "not a key", "admin_private_key": "nor this"})
    (stack.root / "output").write_text(json.dumps({**REPORT, "ranks": 32, "results": [ROW]}))
    code, _, err = yard("nccl", "--nodes", nodes)
    assert code == 1
    assert f"FAILED: busbw 1.20 GB/s at 1073741824 bytes is below the floor of {floor} GB/s" in err
    assert "-e 8G" in scripts(stack)[0]


def test_scaling_starts_with_one_node(cluster: Program, stack: FakeStack) -> None:
    metrics: dict[str, Any] = {"step": 30, "loss": 5.0, "step_ms": 10.0, "tokens_per_s": 800.0}
    (stack.root / "output").write_text(json.dumps(metrics) + "\n")
    (stack.root / "job.log").write_text('step 30\n{"summary": true, "tokens_per_s": 800.0, "hardware_tflops": 0.1}\n')
    code, out, err = yard("scaling", "--json", "--min", "0.9")
    answer = json.loads(out)
    assert [row["nodes"] for row in answer["rows"]] == [1, 2]
    # Both runs report the same rate, so the efficiency of two nodes is one half.
    assert [row["efficiency"] for row in answer["rows"]] == [1.0, 0.5]
    assert (code, answer["passed"]) == (1, False)
    one, two = scripts(stack)
    assert ("--nodes=1" in one, "--nodes=2" in two) == (True, True)
    assert ("--batch 4 " in one, "--batch 8 " in two) == (True, True)
    assert err.count("yard: job ") == 2


def test_a_failed_job_is_reported(stack: FakeStack, cluster: Program, program: MakeProgram) -> None:
    program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", "FAILED"))
    code, _, err = yard("train")
    assert code == 1
    assert "FAILED: no results. Fix: find the cause with `yard logs 1`" in err


@pytest.mark.parametrize(
    ("arguments", "message"), [(("--nodes", "3"), "has 2 nodes, not 3"), (("--group", "x"), "has no node group")]
)
def test_missing_nodes_and_groups_are_reported(arguments: tuple[str, ...], message: str, cluster: Program) -> None:
    code, _, err = yard("nccl", *arguments)
    assert code == 1
    assert message in err


def test_outputs_without_pair_thresholds_are_read(local_outputs: Cluster) -> None:
    raw = dumped(replace(local_outputs, thresholds={"gpu": 228.0}))
    del raw["pair_thresholds"]
    assert read_outputs(raw).pair_thresholds == {}
    # The floor for one node does not apply to two nodes.
    cluster = read_outputs(raw)
    assert (cluster.busbw_floor("gpu", 1), cluster.busbw_floor("gpu", 2)) == (228.0, None)


def test_benchmarks_do_not_use_spares(wide: Cluster) -> None:
    remote: Any = SimpleNamespace(stack=SimpleNamespace(cluster=replace(wide, spares={"gpu": 1})))
    assert field_of(remote, None, None).nodes == 3
    with pytest.raises(BenchError, match="has 3 nodes, not 4"):
        field_of(remote, None, 4)
