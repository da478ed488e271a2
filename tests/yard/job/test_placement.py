"""The node groups of a job: `groups`, and the price of its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import job_of
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster, Prices
from yard.job.loader import load_job
from yard.job.placement import place
from yard.run.schedulers import Runner
from yard.run.script import render_script
from yard.run.submit import prepare

GROUPS = "name: fine\nrun: echo\nnodes: 2\ngroups: [gpu, b]\n"


def with_group(cluster: Cluster, count: int = 2, **facts: Any) -> Cluster:
    """Return the cluster with a second group, `b`, whose nodes differ in `facts`. Its machines are dearer."""
    more = [replace(node, name=f"b-{node.name}", group="b", **facts) for node in cluster.nodes[:count]]
    floors = {"gpu": 300.0, "b": 200.0}
    return replace(
        cluster,
        nodes=(*cluster.nodes, *more),
        env={**cluster.env, "b": cluster.env["gpu"]},
        thresholds=floors,
        pair_thresholds=floors,
        prices=Prices(nodes={"gpu": 10.0, "b": 30.0}),
    )


def problems(text: str, cluster: Cluster, folder: Path) -> list[tuple[str, str]]:
    with pytest.raises(JobFileError) as error:
        place(job_of(folder, text), cluster)
    return [(problem.path, problem.rule) for problem in error.value.problems]


def test_slurm_chooses_one_of_the_groups(tmp_path: Path, wide: Cluster) -> None:
    job, cluster = job_of(tmp_path, GROUPS), with_group(wide, gpu_type="a100")
    placement = place(job, cluster)
    assert "#SBATCH --partition=gpu,b\n" in render_script(job, placement)
    # The price of the dearest group, and the floor that nodes of all groups reach.
    assert (placement.usd_per_hour, placement.busbw_floor) == (60.0, 200.0)
    assert len(placement.hosts) == len(wide.nodes) + 2
    limit = prepare(job_of(tmp_path, GROUPS + "time: 9h\nmax_usd: 60\n"), cluster)
    assert (limit.group, limit.seconds) == ("gpu,b", 3600)


def test_one_message_lists_the_problems_of_all_groups(tmp_path: Path, wide: Cluster) -> None:
    text = GROUPS.replace("nodes: 2", "nodes: 9").replace("b]", "b, c]")
    assert problems(text, with_group(wide, gpus=4), tmp_path) == [
        ("nodes", "the job needs 9 nodes, but group 'gpu' has 4"),
        ("nodes", "the job needs 9 nodes, but group 'b' has 2"),
        ("groups", "cluster 'yard' has no node group 'c'"),
        (
            "groups",
            "the nodes of all groups must have the same number of GPUs and the same fabric (gpu: 8 GPUs, ethernet, "
            "b: 4 GPUs, ethernet)",
        ),
    ]


@pytest.mark.parametrize("facts", [{"gpus": 4}, {"fabric": "infiniband"}, {"gpu_type": "fake"}])
def test_groups_of_different_nodes_are_refused(facts: dict[str, Any], tmp_path: Path, wide: Cluster) -> None:
    assert [path for path, _ in problems(GROUPS, with_group(wide, **facts), tmp_path)] == ["groups"]


def test_an_unsuitable_group_is_refused_although_another_fits(tmp_path: Path, wide: Cluster) -> None:
    found = problems(GROUPS, with_group(wide, count=1), tmp_path)
    assert found == [("nodes", "the job needs 2 nodes, but group 'b' has 1")]


def test_the_option_replaces_the_groups_of_the_file(tmp_path: Path, wide: Cluster) -> None:
    job_of(tmp_path, GROUPS)
    job = load_job(str(tmp_path / "job.yaml"), {"group": "b"}, {}, [])
    assert place(job, with_group(wide)).groups == ("b",)


def test_groups_and_max_usd_need_a_scheduler(tmp_path: Path) -> None:
    job = job_of(tmp_path, GROUPS + "max_usd: 25\n")
    assert [problem.path for problem in Runner().problems(job)] == ["groups", "max_usd"]
