"""Placement: a checked job laid onto a cluster's facts. Pure; what does not fit is a problem, not Slurm's surprise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from components.errors import Problem
from jobs.errors import JobFileError
from jobs.facts import NO_TRANSPORT, Cluster, Node, Transport
from jobs.fit import memory_problem, scheduler_problems
from jobs.loader import LoadedJob


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how wide a job runs.

    `env` and `transport` are the node group's. `busbw_floor` is the group's floor in GB/s for that number of nodes, or
    None if none is published. `whole_nodes`: no other job may share the nodes.
    """

    scheduler: str
    shared_path: str
    group: str
    nodes: int
    hosts: tuple[Node, ...]
    """The group's nodes: whoever places the job takes `nodes` of them."""
    gpus_per_node: int
    tasks_per_node: int
    whole_nodes: bool
    real_gpus: bool
    visible_gpus: str | None
    """Without a scheduler: the GPUs of a job that takes a part of its nodes'. None: all, or somebody else says."""
    env: Mapping[str, str]
    transport: Transport
    busbw_floor: float | None


def drives_gpus(node: Node) -> bool:
    """Tell whether a rank can compute on the node's GPUs; fake ones only exist to be scheduled."""
    return node.gpus > 0 and node.gpu_type != "fake"


def place(job: LoadedJob, cluster: Cluster) -> Placement:
    """Choose the group and fill in what the job left open. Raises JobFileError when it cannot fit."""
    spec = job.spec
    groups: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        groups.setdefault(node.group, []).append(node)
    wanted = [spec.group] if spec.group is not None else list(groups)
    fitting = [name for name in wanted if name in groups and not _misfits(job, name, groups[name])]
    if not fitting:
        raise JobFileError(job.file, _all_misfits(job, wanted, groups, cluster.name))
    if problems := list(scheduler_problems(spec, cluster.scheduler)):
        raise JobFileError(job.file, problems)
    group = fitting[0]
    node = groups[group][0]
    gpus = node.gpus if spec.gpus_per_node is None else spec.gpus_per_node
    default_tasks = gpus if gpus and drives_gpus(node) else 1
    if trouble := memory_problem(spec, gpus, node.gpu_type):
        raise JobFileError(job.file, [trouble])
    partly = cluster.scheduler == "none" and drives_gpus(node) and gpus < node.gpus
    return Placement(
        scheduler=cluster.scheduler,
        shared_path=cluster.shared_path,
        group=group,
        nodes=spec.nodes,
        hosts=tuple(groups[group]),
        real_gpus=gpus > 0 and drives_gpus(node),
        visible_gpus=",".join(map(str, range(gpus))) if partly else None,
        gpus_per_node=gpus,
        tasks_per_node=spec.tasks_per_node or default_tasks,
        whole_nodes=gpus == node.gpus and spec.memory_per_node is None,
        env=cluster.env.get(group, {}),
        transport=cluster.transport.get(group, NO_TRANSPORT),
        busbw_floor=cluster.busbw_floor(group, spec.nodes),
    )


def _misfits(job: LoadedJob, group: str, nodes: list[Node]) -> list[Problem]:
    spec = job.spec
    problems: list[Problem] = []
    if spec.nodes > len(nodes):
        rule = f"the job wants {spec.nodes} nodes, group '{group}' has {len(nodes)}"
        problems.append(Problem(path="nodes", rule=rule, fix=f"use --nodes {len(nodes)}, or raise the group's count"))
    if spec.gpus_per_node is not None and spec.gpus_per_node > nodes[0].gpus:
        rule = f"the job wants {spec.gpus_per_node} GPUs per node, a node of group '{group}' has {nodes[0].gpus}"
        problems.append(Problem(path="gpus_per_node", rule=rule, fix=f"use --gpus-per-node {nodes[0].gpus} or fewer"))
    return problems


def _all_misfits(job: LoadedJob, wanted: list[str], groups: Mapping[str, list[Node]], cluster: str) -> list[Problem]:
    unknown = [name for name in wanted if name not in groups]
    if unknown:
        fix = f"use one of: {', '.join(groups)}"
        return [Problem(path="group", rule=f"cluster '{cluster}' has no node group '{unknown[0]}'", fix=fix)]
    return [problem for name in wanted for problem in _misfits(job, name, groups[name])]
