"""The node group of a job, and the list of nodes with spares."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.errors import JobFileError, RemoteError, StackError
from trainyard.outputs import Cluster
from yard.job.loader import load_job
from yard.job.placement import place
from yard.run import jobs


def test_jobs_do_not_use_spares(wide: Cluster) -> None:
    cluster = replace(wide, spares={"gpu": 1})
    assert place(load_job("hello", {"nodes": 3}, {}, []), cluster).nodes == 3
    with pytest.raises(JobFileError, match="needs 4 nodes, but group 'gpu' has 3 for jobs, and 1 spare"):
        place(load_job("hello", {"nodes": 4}, {}, []), cluster)


def test_job_runs_in_the_first_group_with_enough_gpu_memory(wide: Cluster, local: Cluster) -> None:
    small = tuple(replace(node, name=f"small-{node.name}", group="small", gpus=8) for node in local.nodes)
    cluster = replace(wide, nodes=(*small, *wide.nodes))
    job = load_job("opt-6.7b-zero3", {"nodes": 2}, {}, [])
    assert job.spec.model is not None
    assert place(job, cluster).group == "gpu"
    with pytest.raises(JobFileError, match="none on the nodes of group 'small'"):
        place(job, replace(wide, nodes=small))


@pytest.mark.parametrize(
    ("fabric", "env", "refused"),
    [
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": "4194304"}, ["NCCL_BUFFSIZE", "NCCL_PROTO"]),
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple,LL128", "NCCL_DEBUG": "INFO"}, []),
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple", "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/x.txt"}, []),
        ("gvnic", {"NCCL_PROTO": "Simple"}, []),
    ],
)
def test_settings_that_the_nccl_plugin_refuses_are_problems(
    wide: Cluster, fabric: str, env: dict[str, str], refused: list[str]
) -> None:
    """The plugin would end the job after its machines have started it."""
    job = load_job("hello", {}, env, [])
    cluster = replace(wide, nodes=tuple(replace(node, fabric=fabric) for node in wide.nodes))
    found: list[str] = []
    try:
        place(job, cluster)
    except JobFileError as error:
        found = [problem.path for problem in error.problems]
    assert found == [f"env.{name}" for name in refused]


@pytest.mark.parametrize(("spares", "state"), [({"gpu": 1}, "spare"), ({}, "reserved")])
def test_reserved_node_of_a_group_with_spares_is_a_spare(
    wide: Cluster, spares: dict[str, int], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {f"yard-gpu-{index}": ("idle", "") for index in range(3)} | {"yard-gpu-3": ("reserved", "")}
    monkeypatch.setattr(jobs, "scheduler_of", lambda _: SimpleNamespace(nodes=lambda _: states))
    shown: list[Any] = []
    monkeypatch.setattr(jobs, "say_json", shown.extend)
    remote: Any = SimpleNamespace(stack=SimpleNamespace(cluster=replace(wide, spares=spares)))
    jobs.list_nodes(remote, as_json=True)
    assert [row["state"] for row in shown] == ["head", "idle", "idle", "idle", state]


UNREADY = "the gate on the head has not passed"


def test_a_cluster_that_is_not_ready_runs_no_job(wide: Cluster) -> None:
    for cluster in (replace(wide, unready=UNREADY), replace(wide, unready=UNREADY, nodes=())):
        with pytest.raises(StackError, match=f"has not become ready: {UNREADY}. Fix: .*`pulumi up` again"):
            place(load_job("hello", {}, {}, []), cluster)


def test_nodes_are_listed_before_slurm_runs(
    wide: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> dict[str, tuple[str, str]]:
        raise RemoteError("sinfo: command not found")

    monkeypatch.setattr(jobs, "scheduler_of", lambda _: SimpleNamespace(nodes=fails))
    remote: Any = SimpleNamespace(stack=SimpleNamespace(cluster=replace(wide, unready=UNREADY)))
    jobs.list_nodes(remote, as_json=False)
    printed = capsys.readouterr()
    assert "yard-gpu-3" in printed.out
    assert "the states of the nodes are unknown: sinfo: command not found" in printed.err
    assert f"has not become ready: {UNREADY}" in printed.err
    remote.stack.cluster = wide
    with pytest.raises(RemoteError):
        jobs.list_nodes(remote, as_json=False)
