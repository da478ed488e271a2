"""`yard reproduce`: posts, plans, and a run with a fake ssh."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack, MakeProgram, printed, refused, yard
from tests.yard.run.test_bench import SSH
from trainyard.errors import BuildError
from trainyard.outputs import Cluster
from yard.commands.cli import app
from yard.init.new_stack import posts
from yard.job.loader import load_job
from yard.preview.rehearsal import rehearse
from yard.reproduce.posts import post_names, read_post
from yard.reproduce.steps import build_images, dockerfile
from yard.run.submit import prepare
from yard.stack.load import load_stack
from yard.stack.remote import Remote

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
    assert f"pulumi up -s {post.stack} " in out
    assert json.loads(yard("reproduce", name, *options, "--json")[1])["commands"] == post.commands
    assert ssh.calls == pulumi.calls == []


def test_the_commands_can_be_submitted(stack: FakeStack) -> None:
    stack.program("ssh", "exit 1")
    for name in POSTS:
        for command in read_post(name, smoke=True).commands:
            words = command.split()[1:]
            if words[0] == "submit":
                done = CliRunner().invoke(app, [words[0], "--dry-run", *words[1:]])
                assert done.exit_code == 0, done.stderr


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
    assert json.loads(out)["figures"][0] == {
        "name": "bus bandwidth at 8 GiB on 16 GPUs (GB/s)",
        "post": "189.64",
        "ours": None,
    }
    assert "the logs contain no value for: bus bandwidth" in err


def test_the_smallest_size_runs_all_steps(stack: FakeStack) -> None:
    code, out, err = run(stack, "step 1\n", "lambda", "--smoke")
    assert code == 0, err
    assert "/shared/data/neox-smoke exists" in err
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
