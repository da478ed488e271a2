"""Benchmarks and `yard reproduce`: jobs on a fake cluster, records, floors, posts and damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, Program, outputs, printed, refused, yard
from trainyard.errors import BenchError, BuildError
from trainyard.outputs import Cluster, dumped, read_outputs
from yard.init.new_stack import posts
from yard.job.loader import load_job
from yard.preview.rehearsal import rehearse
from yard.reproduce.posts import post_names, read_post
from yard.reproduce.steps import build_images, dockerfile
from yard.run.bench import Record, counts, failures, field_of, load, notes, save, summary_of
from yard.run.submit import prepare
from yard.stack.load import load_stack
from yard.stack.remote import Remote

# Body of a fake ssh that stores submissions, reports that each job has ended, and prints files from a local folder.
SSH = r"""
line="${!#}"
case $line in
  *sbatch*)
    d={root}/sent/$(ls {root}/sent | wc -l)
    mkdir "$d"
    tar -xC "$d" --strip-components=1
    ls {root}/sent | wc -l ;;
  *"exec bash -c"*) cat {root}/job.log; printf '\x1eJobId=1 JobName=x UserId=t(1) JobState={state} ExitCode=0:0\n' ;;
  *scontrol*)
    n=${line#*show job }; echo "JobId=${n%% *} JobName=x UserId=t(1) JobState=COMPLETED ExitCode=0:0 Restarts=0" ;;
  cat*) cat {root}/output ;;
  *environment.json*) echo ready /shared/envs/torch-1234 ;;
  *'.json ]'*) echo yes ;;
esac
"""


@pytest.fixture
def cluster(stack: FakeStack) -> Program:
    (stack.root / "sent").mkdir()
    (stack.root / "job.log").write_text("words\n")
    return stack.program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", "COMPLETED"))


def scripts(stack: FakeStack) -> list[str]:
    return [(path / "job.sbatch").read_text() for path in sorted((stack.root / "sent").iterdir())]


ROW = {"size": 1 << 30, "count": 1 << 28, "type": "float32", "time_us": 9e5, "algbw": 1.2, "busbw": 1.2, "wrong": 0}
REPORT = json.dumps({"ranks": 32, "backend": "gloo", "avg_busbw": 1.0, "results": [ROW]})


def test_an_all_reduce_is_submitted_saved_and_shown(cluster: Program, stack: FakeStack, tmp_path: Path) -> None:
    (stack.root / "output").write_text(REPORT)
    assert "1G" in printed("bench", "nccl", "--out", str(tmp_path / "kept"), "--", "--iters", "3")
    [script] = scripts(stack)
    assert "--nodes=2" in script
    assert "--iters 3" in script
    [kept] = (tmp_path / "kept").glob("nccl-yard-*.json")
    assert json.loads(kept.read_text())["rows"] == [ROW]
    assert yard("bench", "nccl", "--from", str(kept))[0] == 0


def test_the_environment_of_the_recipe_can_be_replaced(stack: FakeStack, cluster: Program) -> None:
    stack.deploy(outputs(8, "h100", 4, None))
    (stack.root / "output").write_text(REPORT)
    assert yard("bench", "nccl")[0] == 0
    assert yard("bench", "nccl", "--env", "none")[0] == 0
    first, second = sorted((stack.root / "sent").iterdir())
    assert (first / "environment").read_text() == "/shared/envs/torch-1234\n"
    assert not (second / "environment").exists()


@pytest.mark.parametrize(("nodes", "floor"), [("1", 300), ("4", 200)])
def test_a_slow_run_fails_the_floor_for_its_nodes(nodes: str, floor: int, cluster: Program, stack: FakeStack) -> None:
    stack.deploy(outputs(8, "h100", 4, 300.0, 200.0))
    (stack.root / "output").write_text(REPORT)
    err = refused("bench", "nccl", "--nodes", nodes)
    assert f"FAILED: busbw 1.20 GB/s at 1073741824 bytes is below the floor of {floor} GB/s" in err
    assert "-e 8G" in scripts(stack)[0]


def test_scaling_starts_with_one_node(cluster: Program, stack: FakeStack) -> None:
    metrics: dict[str, Any] = {"step": 30, "loss": 5.0, "step_ms": 10.0, "tokens_per_s": 800.0}
    (stack.root / "output").write_text(json.dumps(metrics) + "\n")
    (stack.root / "job.log").write_text('step 30\n{"summary": true, "tokens_per_s": 800.0, "hardware_tflops": 0.1}\n')
    code, out, err = yard("bench", "scaling", "--json", "--min", "0.9")
    answer = json.loads(out)
    assert [row["nodes"] for row in answer["rows"]] == [1, 2]
    # Both runs report the same rate, so the efficiency of two nodes is one half.
    assert [row["efficiency"] for row in answer["rows"]] == [1.0, 0.5]
    assert (code, answer["passed"]) == (1, False)
    one, two = scripts(stack)
    assert ("--nodes=1" in one, "--nodes=2" in two) == (True, True)
    assert ("--batch 4 " in one, "--batch 8 " in two) == (True, True)
    assert err.count("yard: job ") == 2
    assert [counts(most) for most in (1, 3, 6, 8)] == [[1], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_a_failed_job_is_reported(stack: FakeStack, cluster: Program) -> None:
    stack.program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", "FAILED"))
    assert "FAILED: no results. Fix: find the cause with `yard logs 1`" in refused("bench", "train")


def test_outputs_without_pair_thresholds_are_read(local: Cluster) -> None:
    raw = dumped(replace(local, thresholds={"gpu": 228.0}))
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
    with pytest.raises(BenchError, match="has no node group 'x'"):
        field_of(remote, "x", None)


H200 = {1 << 24: 265.5, 1 << 26: 312.3, 1 << 28: 340.0, 1 << 29: 348.3, 1 << 30: 354.5, 1 << 31: 359.4, 1 << 33: 364.9}
"""Bus bandwidth in GB/s by message size in bytes, measured on four H200s in one host (docs/dev/benchmarks.md)."""


def record(kind: str, rows: list[dict[str, Any]], floor: float | None = None, **summary: float) -> Record:
    where = {"cluster": "lab", "group": "gpu", "gpu_type": "h200", "taken": "2026-11-21T12:00:00+00:00"}
    return Record(kind=kind, nodes=1, ranks=4, floor=floor, rows=rows, summary=summary, **where)


def nccl_record(floor: float | None = None, speed: float = 1.0, wrong: int = 0) -> Record:
    rows = [
        {"size": size, "time_us": 1.0, "algbw": rate / 1.5, "busbw": rate * speed, "wrong": wrong}
        for size, rate in H200.items()
    ]
    return record("nccl", rows, floor)


def train_record(floor: float | None = None, loss: float = 6.0, reached: float = 547.0) -> Record:
    return record("train", [{"step": 1, "loss": loss}], floor, hardware_tflops=reached)


def scaling_record(floor: float | None = None) -> Record:
    rows = [{"nodes": nodes, "tokens_per_s": 1.0, "efficiency": share} for nodes, share in ((1, 1.0), (4, 0.963))]
    return record("scaling", rows, floor)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (nccl_record(300), ""),
        (nccl_record(300, speed=0.5), "busbw 182.45 GB/s at 8589934592 bytes is below the floor of 300 GB/s"),
        (nccl_record(None, wrong=3), "21 elements are wrong: a link or a GPU corrupts data; check the hosts"),
        (train_record(500), ""),
        (train_record(500, reached=432), "432.0 TFLOPS per rank is below 500"),
        (train_record(None, loss=float("nan")), "the loss is not a number"),
        (scaling_record(0.95), ""),
        (scaling_record(0.97), "4 nodes have an efficiency of 0.96, below 0.97"),
    ],
)
def test_slow_or_wrong_runs_fail_with_values(made: Record, message: str) -> None:
    found = failures(made)
    assert bool(found) == bool(message)
    assert message in "".join(found)


def test_small_messages_are_not_compared_with_the_floor() -> None:
    small = nccl_record(300, speed=0.1)
    small = Record(**{**small.__dict__, "rows": small.rows[:3]})
    assert failures(small) == []
    assert notes(small) == ["the largest size, 268435456 bytes, is too small for the floor of 300 GB/s"]
    assert "set one with --min" in notes(nccl_record(None))[0]
    assert notes(nccl_record(300)) == []


def test_the_summary_of_the_trainer_is_found() -> None:
    message = ["step 30", '{"summary": true, "tokens_per_s": 5.0}', "bye"]
    assert summary_of(message)["tokens_per_s"] == 5.0
    for without in (message[:1], ['{"summary": true, "steps_done": 5}']):
        with pytest.raises(BenchError, match="run more than 10 steps"):
            summary_of(without)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[]", "is not a record of this version"),
        ('{"format": 2}', "is not a record of this version"),
        ('{"format": 1, "kind": "nccl"}', "is damaged"),
        (json.dumps({"format": 1, **scaling_record().__dict__}), "is a record of scaling. Fix: use `yard bench sca"),
        (json.dumps({"format": 1, **nccl_record().__dict__, "rows": []}), "is damaged .IndexError"),
        (json.dumps({"format": 1, **nccl_record().__dict__, "rows": [{"size": 1}]}), "is damaged .KeyError.'wrong'"),
    ],
)
def test_damaged_or_unsuitable_records_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BenchError, match=message):
        load(tmp_path / "x.json", "nccl", None)


def test_a_saved_record_is_compared_with_a_new_floor(tmp_path: Path) -> None:
    saved = ("nccl", "--from", str(tmp_path / "r.json"))
    save(nccl_record(300), tmp_path / "r.json")
    code, out, _ = yard("bench", *saved)
    assert (code, out.splitlines()[-1]) == (0, "passed")
    assert "FAILED: busbw 364.90 GB/s" in refused("bench", *saved, "--min", "400")
    answer = json.loads(yard("bench", *saved, "--min", "400", "--json")[1])
    assert (answer["passed"], answer["floor"], len(answer["rows"])) == (False, 400.0, 7)
    assert load(tmp_path / "r.json", "nccl", None) == nccl_record(300)


POSTS = post_names()
LOGS = {
    "lambda": "samples/sec: 6.381 | iteration 20/320000 | approx flops per GPU: 127.2TFLOPS |\n",
    "greennode": '{"backend": "nccl", "ranks": 16, "step_ms_p50": 89.0, "samples_per_s": 3595.5}\n',
    "cyclecloud": " 8589934592 2147483648 float sum 84929 101.14 189.64 5e-07 85013 101.04 189.45 5e-07\n"
    '{"summary": true, "tokens_per_s": 210000.5}\n',
    "deepspeed-azure": "step 99 loss 1.0 44000 tokens/s\nstep 100 loss 1.0 45000 tokens/s\n",
    "abeja": "step 50 loss 1.0 9000 tokens/s\n",
}
"""Output of the jobs. The gpt-neox line follows megatron/logging.py at ea7aefd, and the nccl-tests line follows the
post."""


def test_every_post_of_a_stack_can_be_reproduced() -> None:
    assert {name: read_post(name, smoke=False).stack for name in POSTS} == posts()


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("name", POSTS)
def test_the_jobs_fit_the_stack(name: str, smoke: bool, local: Cluster) -> None:
    post = read_post(name, smoke=smoke)
    assert post.differs or not smoke
    cluster = local if smoke else rehearse(post.stack, "").cluster
    for run in post.jobs:
        prepared = prepare(run.load(smoke=smoke), cluster)
        assert prepared.nodes
        assert not (smoke and prepared.environment)


@pytest.mark.parametrize("name", POSTS)
def test_figures_are_found_in_the_logs(name: str) -> None:
    post = read_post(name, smoke=False)
    logs = {run.name or run.recipe: LOGS[name] for run in post.jobs}
    assert post.figures
    assert [figure.name for figure in post.figures if figure.ours(logs) is None] == []
    assert [figure.name for figure in post.figures if figure.ours(dict.fromkeys(logs, "")) is not None] == []


def test_the_last_value_counts() -> None:
    (figure,) = read_post("deepspeed-azure", smoke=False).figures
    assert figure.ours({"opt-6.7b-zero3": LOGS["deepspeed-azure"]}) == "45000"
    bandwidth = read_post("cyclecloud", smoke=False).figures[0]
    assert bandwidth.ours({"nccl-allreduce-sbatch": LOGS["cyclecloud"]}) == bandwidth.post


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("name", POSTS)
def test_a_dry_run_needs_no_cluster(name: str, smoke: bool, program: MakeProgram) -> None:
    ssh, pulumi = program("ssh", "exit 1"), program("pulumi", "exit 1")
    options = ["--dry-run", *(["--smoke"] if smoke else [])]
    post = read_post(name, smoke=smoke)
    out = printed("reproduce", name, *options)
    assert all(f"     {command}\n" in out for command in post.commands)
    # Pulumi would write a key to the committed stack file.
    assert f"-s {post.stack}" not in out
    assert ("`make demo`" if smoke else f"     yard init NAME --from {name}\n") in out
    assert json.loads(yard("reproduce", name, *options, "--json")[1])["commands"] == post.commands
    assert ssh.calls == pulumi.calls == []


def test_the_commands_can_be_submitted(stack: FakeStack) -> None:
    stack.program("ssh", "exit 1")
    for name in POSTS:
        for command in read_post(name, smoke=True).commands:
            words = command.split()[1:]
            if words[0] == "submit":
                printed(words[0], "--dry-run", *words[1:])


def test_an_unknown_post_is_refused() -> None:
    assert "Fix: use one of abeja, cyclecloud" in refused("reproduce", "lamda", "--dry-run")


def run(stack: FakeStack, log: str, *words: str, state: str = "COMPLETED") -> tuple[int, str, str]:
    (stack.root / "sent").mkdir(exist_ok=True)
    (stack.root / "job.log").write_text(log)
    stack.program("ssh", SSH.replace("{root}", str(stack.root)).replace("{state}", state))
    return yard("reproduce", *words)


def test_figures_are_printed_next_to_those_of_the_post(stack: FakeStack) -> None:
    words = ("cyclecloud", "--stack", "local")
    code, out, err = run(stack, LOGS["cyclecloud"], *words)
    assert code == 0, err
    assert "OPT-125M on 8 GPUs" in out.split("FIGURE")[1]
    assert "210000.5" in out.split("FIGURE")[1]
    assert "cyclecloud: 2 jobs completed in " in out
    code, out, err = run(stack, "nothing\n", *words, "--json")
    assert code == 1
    figure = {"name": "bus bandwidth at 8 GiB on 16 GPUs (GB/s)", "post": "189.64", "ours": None}
    assert json.loads(out)["figures"][0] == figure
    assert "the logs contain no value for: bus bandwidth" in err


def test_the_smallest_size_runs_all_steps(stack: FakeStack) -> None:
    code, out, err = run(stack, "step 1\n", "lambda", "--smoke")
    assert code == 0, err
    assert "/shared/data/neox-smoke exists" in err
    assert "is submitted; its log follows" in err
    assert "yard: difference from the post: yard's trainer runs instead of gpt-neox" in err
    assert "--data /shared/data/neox-smoke.bin --token-bytes 2" in (stack.root / "sent/0/job.sbatch").read_text()
    assert "lambda: 1 job completed in " in out


def test_a_failed_job_ends_the_run(stack: FakeStack) -> None:
    code, out, err = run(stack, "oh\n", "cyclecloud", "--stack", "local", state="FAILED")
    assert code == 1
    assert "job 1 FAILED. Fix: find the cause with `yard logs 1`" in err
    assert "FIGURE" not in out


def test_an_image_is_built_on_every_node(stack: FakeStack) -> None:
    stack.program(
        "ssh", f'cat >"{stack.root}/${{@: -2:1}}.Dockerfile"; [[ $* != *gpu-1* ]] || {{ echo no space >&2; exit 1; }}'
    )
    remote = Remote(load_stack("local"))
    with pytest.raises(BuildError, match=r"image deepspeed-ssh was not built on yard-gpu-1: no space\. Fix: "):
        build_images(remote, "deepspeed-ssh", lambda text: None)
    texts = [(stack.root / f"yard-gpu-{number}.Dockerfile").read_text() for number in (0, 1)]
    assert texts == [dockerfile("deepspeed-ssh").read_text()] * 2
    ssh = stack.program("ssh", "cat >/dev/null")
    build_images(remote, "deepspeed-ssh", lambda text: None)
    assert len([call for call in ssh.calls if "docker image inspect deepspeed-ssh >/dev/null" in call]) == 4


@pytest.mark.parametrize("name", POSTS)
def test_images_belong_to_the_recipes(name: str) -> None:
    post = read_post(name, smoke=False)
    wanted = {load_job(run.recipe, {}, {}, []).spec.container for run in post.jobs} - {None}
    local_images = {container.image for container in wanted if container and "/" not in container.image}
    assert local_images == ({f"{post.image}:latest"} if post.image else set())
    assert post.image is None or "COPY" not in dockerfile(post.image).read_text()
