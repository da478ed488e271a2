"""Checks whether a job fits the cluster, and determines the values that the job file omits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trainyard.errors import JobFileError, Problem, StackError
from trainyard.outputs import NO_TRANSPORT, Cluster, Node, Transport
from yard.job.loader import LoadedJob
from yard.job.spec import JobSpec, refuse

_CHECKER = "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE"
_CHECKED = {
    "gpudirect-tcpxo": {
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_CROSS_NIC": "0",
        "NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL": "0",
        "NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0",
        "NCCL_FASTRAK_NUM_FLOWS": "2",
        "NCCL_FASTRAK_USE_LLCM": "1",
        "NCCL_FASTRAK_USE_SNAP": "1",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_NVLSTREE_MAX_CHUNKSIZE": "131072",
        "NCCL_P2P_NET_CHUNKSIZE": "524288",
        "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        "NCCL_P2P_PCI_CHUNKSIZE": "524288",
        "NCCL_PROTO": "Simple,LL128",
    }
}
"""NCCL settings that the guest config checker of a fabric plugin enforces. The checker ends programs with other values.

Google does not publish the checker's list, so these are the profile's tuning settings
(google/nccl-plugin-gpudirect-tcpxo at 04815d1b, tcpxo_scripts/nccl-env-profile.sh). Enforcement is documented for
NCCL_NVLSTREE_MAX_CHUNKSIZE (GoogleCloudPlatform/container-engine-accelerators at 992db812, gpudirect-tcpxo/README.md)
and reported for NCCL_PROTO (NVIDIA/aicr pull request 422). All sources were read on 2026-11-24.
"""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A job's node group and size, and the facts about the nodes that the job's script needs."""

    scheduler: str
    shared_path: str
    groups: tuple[str, ...]
    """The groups of which the scheduler chooses one. Their nodes have the same number of GPUs and the same fabric."""
    nodes: int
    hosts: tuple[Node, ...]
    """All nodes in the groups. The scheduler chooses among them."""
    gpus_per_node: int
    tasks_per_node: int
    whole_nodes: bool
    """Whether the job has exclusive use of its nodes."""
    real_gpus: bool
    env: Mapping[str, str]
    transport: Transport
    busbw_floor: float | None
    """The published minimum bus bandwidth in GB/s of an all-reduce on `nodes` nodes in any of the groups, or None."""
    usd_per_hour: float | None
    """The list price of `nodes` nodes in the dearest group. None if a price is unknown or is a Spot price."""


def refuse_unready(cluster: Cluster) -> None:
    """Raise StackError if the cluster has never become ready."""
    if cluster.warning:
        raise StackError(cluster.warning)


def drives_gpus(node: Node) -> bool:
    """Return whether ranks can use the node's GPUs. A fake GPU is a file that only the scheduler uses."""
    return node.gpus > 0 and node.gpu_type != "fake"


def place(job: LoadedJob, cluster: Cluster) -> Placement:
    """Choose the job's node group, and determine the values that the job file omits.

    If the job file names no group, the first suitable group in the outputs is chosen. All of the job file's `groups`
    must be suitable. Raises JobFileError, which lists every group's problems, if no group is suitable. Raises
    StackError if the cluster has never become ready.
    """
    refuse_unready(cluster)
    spec = job.spec
    groups: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        groups.setdefault(node.group, []).append(node)
    named = spec.groups or ((spec.group,) if spec.group is not None else ())
    key, fix = "groups" if spec.groups else "group", f"use one of: {', '.join(groups)}"
    problems = {
        name: list(_problems(spec, name, groups[name], cluster.spares.get(name, 0)))
        if name in groups
        else [Problem(path=key, rule=f"cluster '{cluster.name}' has no node group '{name}'", fix=fix)]
        for name in named or groups
    }
    differing = list(_differing({name: groups[name][0] for name in spec.groups if name in groups}))
    suitable = tuple(name for name in problems if not problems[name])
    if differing or len(suitable) < max(1, len(named)):
        raise JobFileError(job.file, [problem for found in (*problems.values(), differing) for problem in found])
    chosen = suitable if named else suitable[:1]
    group, node = chosen[0], groups[chosen[0]][0]
    gpus = _gpus(spec, node)
    real_gpus = gpus > 0 and drives_gpus(node)
    return Placement(
        scheduler=cluster.scheduler,
        shared_path=cluster.shared_path,
        groups=chosen,
        nodes=spec.nodes,
        hosts=tuple(host for name in chosen for host in groups[name]),
        real_gpus=real_gpus,
        gpus_per_node=gpus,
        tasks_per_node=spec.tasks_per_node or (gpus if real_gpus else 1),
        whole_nodes=gpus == node.gpus and spec.memory_per_node is None,
        env=cluster.env.get(group, {}),
        transport=cluster.transport.get(group, NO_TRANSPORT),
        busbw_floor=_across(min, (cluster.busbw_floor(name, spec.nodes) for name in chosen)),
        usd_per_hour=_across(max, (_usd(cluster, name, spec.nodes) for name in chosen)),
    )


def _across(choose: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """Return the minimum or maximum of `values`, or None if one of them is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return choose(known) if len(known) == len(found) else None


def _usd(cluster: Cluster, group: str, nodes: int) -> float | None:
    price = cluster.firm_usd(group)
    return None if price is None else price * nodes


def _differing(first: Mapping[str, Node]) -> Iterator[Problem]:
    """Yield a problem if groups' nodes differ in a fact that a job's script contains. `first` has a node per group."""
    facts = {name: (node.gpus, drives_gpus(node), node.fabric) for name, node in first.items()}
    if len(set(facts.values())) > 1:
        each = ", ".join(f"{name}: {gpus} GPUs, {fabric}" for name, (gpus, _, fabric) in facts.items())
        rule = f"the nodes of all groups must have the same number of GPUs and the same fabric ({each})"
        yield Problem(path="groups", rule=rule, fix="remove groups, or submit one job for each kind of node")


def budget_seconds(spec: JobSpec, placement: Placement) -> int | None:
    """Return how long the job may run in all of its starts, in seconds, or None without `max_usd`."""
    if spec.max_usd is None or placement.usd_per_hour is None:
        return None
    # Without the addition, a rounding error could take a minute from the limit.
    return int(spec.max_usd * 3600 / placement.usd_per_hour + 1e-6)


def limited(job: LoadedJob, cluster: Cluster, placement: Placement) -> LoadedJob:
    """Return the job with the smaller of its own time limit and the one that `max_usd` allows, in whole minutes.

    Raises JobFileError if a price is unknown, or if the time limit would be less than a minute.
    """
    spec = job.spec
    if spec.max_usd is None:
        return job
    unknown = [name for name in placement.groups if cluster.firm_usd(name) is None]
    if unknown or placement.usd_per_hour is None:
        none = "Spot machines, existing hosts and local machines have none"
        rule = f"needs a fixed list price, which is unknown for group {' and '.join(unknown)} ({none})"
        refuse(job.file, "max_usd", rule, "remove max_usd, and limit the job with `time`")
    minutes = (budget_seconds(spec, placement) or 0) // 60
    if minutes < 1:
        hourly = f"the list price of the job's nodes is ${placement.usd_per_hour:.2f} per hour"
        rule = f"allows less than one minute, because {hourly}"
        refuse(job.file, "max_usd", rule, f"use at least {math.ceil(placement.usd_per_hour / 0.6) / 100:g}")
    if spec.seconds <= minutes * 60:
        return job
    return replace(job, spec=replace(spec, time=f"{minutes}m"))


def _gpus(spec: JobSpec, node: Node) -> int:
    return node.gpus if spec.gpus_per_node is None else spec.gpus_per_node


def _problems(spec: JobSpec, group: str, nodes: list[Node], spares: int) -> Iterator[Problem]:
    usable, gpus = len(nodes) - spares, nodes[0].gpus
    if spec.nodes > usable:
        held = f" for jobs, and {spares} spare" if spares else ""
        rule = f"the job needs {spec.nodes} nodes, but group '{group}' has {usable}{held}"
        yield Problem(path="nodes", rule=rule, fix=f"use --nodes {usable}, or raise the group's count")
    if _gpus(spec, nodes[0]) > gpus:
        rule = f"the job needs {spec.gpus_per_node} GPUs per node, but a node in group '{group}' has {gpus}"
        yield Problem(path="gpus_per_node", rule=rule, fix=f"use --gpus-per-node {gpus} or fewer")
    yield from _setting_problems(spec, nodes[0].fabric)
    fits = spec.nodes <= usable and _gpus(spec, nodes[0]) <= gpus
    if fits and (problem := _memory_problem(spec, group, nodes[0])):
        yield problem


def _setting_problems(spec: JobSpec, fabric: str) -> Iterator[Problem]:
    if _CHECKER in spec.env:
        return
    for name, expected in _CHECKED.get(fabric, {}).items():
        value = spec.env.get(name, expected)
        if value != expected:
            ends = f"the NCCL plugin of {fabric} ends programs in which {name} is not {expected}"
            rule = f"{ends}, and the job sets {value}"
            fix = f"remove {name}, or set {_CHECKER} to the file of another profile of the plugin"
            yield Problem(path=f"env.{name}", rule=rule, fix=fix)


def _memory_problem(spec: JobSpec, group: str, node: Node) -> Problem | None:
    """Return a problem if the job's model does not fit into a group's GPU memory."""
    if spec.model is None:
        return None
    gpus = _gpus(spec, node) if drives_gpus(node) else 0
    if gpus == 0:
        rule = f"{spec.model} needs real GPUs, but the job has none on the nodes of group '{group}'"
        return Problem(path="model", rule=rule, fix="use a stack with GPUs, or the job's smoke size with --smoke")
    from yard.sizing import Machines, SizeError, refusal  # noqa: PLC0415  (few jobs need it)

    try:
        why = refusal(spec.model, node.gpu_type, Machines(nodes=spec.nodes, gpus_per_node=gpus), spec.layout)
    except SizeError as error:
        fix = "`yard size` shows the supported layouts"
        return Problem(path="layout", rule=f"its memory cannot be computed: {error}", fix=fix)
    fix = "use more nodes; `yard size` shows the required number"
    return None if why is None else Problem(path="model", rule=f"group '{group}': {why}", fix=fix)
