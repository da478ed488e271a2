"""The recipes: each is a golden at its full size and its smoke size, and says what it needs and what never ran."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from jobs.errors import JobFileError
from jobs.facts import Cluster
from jobs.loader import LoadedJob, has_smoke, load_job, recipe_names
from jobs.placement import place
from jobs.render import render_script
from tests.conftest import CheckGolden
from tests.jobs.conftest import FakeStack

SMALL = [name for name in recipe_names() if has_smoke(name)]


def home(job: LoadedJob, cluster: Cluster, nodes: int = 16) -> Cluster:
    """The cluster as large as the largest recipe needs it, with the scheduler that this one needs."""
    first = cluster.nodes[0]
    many = tuple(replace(first, name=f"yard-gpu-{index}") for index in range(nodes))
    docker = job.spec.container is not None and job.spec.container.runtime == "docker"
    return replace(cluster, nodes=many, scheduler="none" if docker else "slurm")


def own_part(job: LoadedJob, cluster: Cluster) -> str:
    return render_script(job, place(job, cluster)).partition("\n# --- ")[0] + "\n"


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_at_its_full_size(recipe: str, wide: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [])
    golden(f"jobs/recipes/{recipe}.sh", own_part(job, home(job, wide)))


@pytest.mark.parametrize("recipe", SMALL)
def test_the_smoke_size_fits_the_local_stack(recipe: str, local: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [], smoke=True)
    assert place(job, local).tasks_per_node == 1
    golden(f"jobs/recipes/{recipe}-smoke.sh", own_part(job, local))
    if job.spec.mpi is None:
        assert place(job, replace(local, scheduler="none")).nodes <= 2


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name not in SMALL])
def test_a_recipe_without_a_smoke_size_says_why(recipe: str) -> None:
    job = load_job(recipe, {}, {}, [])
    if recipe in {"hello", "allreduce", "train-tiny"}:
        return
    assert "smoke size" in (job.spec.unproved or "")
    with pytest.raises(JobFileError, match="no smaller size"):
        load_job(recipe, {}, {}, [], smoke=True)


@pytest.mark.parametrize("smoke", [False, True])
@pytest.mark.parametrize("recipe", recipe_names())
def test_the_arguments_are_those_the_workload_takes(recipe: str, smoke: bool) -> None:
    if smoke and recipe not in SMALL:
        return
    job = load_job(recipe, {}, {}, [], smoke=smoke)
    if job.workload is not None:
        assert runpy.run_path(str(job.workload))["parse"](list(job.spec.args)) is not None


def test_every_post_has_its_recipes() -> None:
    posts = {
        "neox-2.7b", "neox-20b", "gpt2-qa-fsdp", "gpt2-qa-ddp", "nccl-allreduce-hostfile", "nccl-allreduce-sbatch",
        "nccl-allreduce-container", "opt-125m", "opt-175b", "opt-6.7b-zero3", "gcp-deepspeed-docker",
    }  # fmt: skip
    assert posts <= set(recipe_names())


def test_a_model_that_cannot_fit_is_refused_with_the_sum(wide: Cluster, local: Cluster) -> None:
    job = load_job("opt-175b", {"nodes": 2}, {}, [])
    with pytest.raises(JobFileError) as caught:
        place(job, home(job, wide))
    (problem,) = caught.value.problems
    assert problem.path == "model"
    assert "opt-175b with fsdp on 16 h100 of 80 GB takes 198.2 GB a GPU" in problem.rule
    assert "optimizer" in problem.rule
    with pytest.raises(JobFileError, match="wants real GPUs"):
        place(job, local)


def test_a_layout_that_divides_nothing_is_told(wide: Cluster) -> None:
    with pytest.raises(JobFileError, match="layout: cannot be sized"):
        place(load_job("neox-20b", {"nodes": 2}, {}, []), home(load_job("neox-20b", {}, {}, []), wide))


def test_recipes_are_listed_with_what_they_need(stack: FakeStack) -> None:
    rows: list[dict[str, Any]] = json.loads(CliRunner().invoke(app, ["recipes", "--json"]).stdout)
    by_name = {row["name"]: row for row in rows}
    assert list(by_name) == recipe_names()
    assert "pdsh" in by_name["neox-2.7b"]["software"]
    assert by_name["neox-2.7b"]["smoke"] is False
    assert by_name["opt-125m"]["smoke"] is True
    text = CliRunner().invoke(app, ["recipes"]).stdout
    assert all(name in text for name in by_name)
    told = CliRunner().invoke(app, ["recipes", "neox-20b"]).stdout
    assert "has never run" in told
    assert stack.pulumi.calls == []
