"""Renders the parameters for the scripts on a node as shell variables and JSON.

birth.env is in user-data and contains facts that never change while the machine exists. All other files can change
while the node is running. These files are in the hand-over or, once for each kind of node, in the bundle.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.catalog import fabrics
from components.node.files import NodeFile, driver_lock, driver_version, files_for, mirror_program
from components.node.monitoring import render_parameters
from components.plan.plan import ClusterPlan, HostPlan, Role
from components.spec.model import CloudSpec
from trainyard.project import installed


@dataclass(frozen=True, kw_only=True)
class SharedFiles:
    """The location of /home and /shared. By default, the head serves them from its root disk."""

    source: str = ""
    """The NFS export that all hosts mount ("10.0.0.2:/shared"), or empty if the head is the server."""
    nfs: str = "4.2"
    id_domain: str = ""
    """The NFSv4 domain that clients must use for user names, or empty for the default."""
    disk: str = ""
    """The block device of the head's data disk, or empty if the files are on its root disk."""
    folder: str = ""
    """The folder on the head that is mounted at /shared, or empty if /shared is an ordinary folder."""


ON_HEAD = SharedFiles()


def kind_of(host: HostPlan) -> str:
    """Return a host's kind. Hosts with the same role and group have the same stages and parameters."""
    return f"{host.role.value}-{host.group}" if host.group else host.role.value


def birth_env(plan: ClusterPlan, host: HostPlan) -> str:
    """Return /etc/trainyard/birth.env with the names and addresses of the node and the head."""
    return _env(
        {
            "TRAINYARD_CLUSTER": plan.name,
            "TRAINYARD_NODE": host.name,
            "TRAINYARD_ROLE": host.role.value,
            "TRAINYARD_GROUP": host.group or "",
            "TRAINYARD_PRIVATE_IP": str(host.private_ip),
            "TRAINYARD_HEAD_NAME": plan.head.name,
            "TRAINYARD_HEAD_IP": str(plan.head.private_ip),
            "TRAINYARD_NETWORK": str(plan.network),
        }
    )


def kind_env(plan: ClusterPlan, host: HostPlan) -> str:
    """Return kind.env with the scheduler, the container runtime, and facts about the machine type and the image."""
    machine, idle = host.machine, plan.limits.idle_gpu
    return _env(
        {
            "TRAINYARD_SCHEDULER": plan.scheduler,
            "TRAINYARD_CONTAINERS": plan.containers,
            "TRAINYARD_GPUS": str(machine.gpus),
            "TRAINYARD_GPU_TYPE": machine.gpu_type or "",
            "TRAINYARD_GPU_DEVICE": machine.gpu_device or "",
            "TRAINYARD_DRIVER": driver_version(plan, host),
            "TRAINYARD_DRIVER_FROM": host.driver,
            "TRAINYARD_DISTRIBUTION_MIRRORS": mirror_program(plan.mirrors, distribution=True),
            "TRAINYARD_MIRRORS": mirror_program(plan.mirrors),
            "TRAINYARD_FABRIC": machine.fabric,
            "TRAINYARD_RDMA": str(machine.rdma),
            "TRAINYARD_RDMA_DEVICES": ",".join(machine.rdma_devices),
            "TRAINYARD_OS": plan.image.os,
            **({"TRAINYARD_PIP_INDEX": plan.mirrors["pypi"]} if "pypi" in plan.mirrors else {}),
            **({"TRAINYARD_IDLE_GPU_SECONDS": str(60 * idle.minutes)} if idle and machine.gpus else {}),
        }
    )


def storage_env(host: HostPlan, shared: SharedFiles) -> str:
    """Return storage.env with the location of /home and /shared."""
    is_head = host.role is Role.HEAD
    return _env(
        {
            "TRAINYARD_SHARED_SOURCE": shared.source,
            "TRAINYARD_SHARED_DOMAIN": shared.id_domain,
            "TRAINYARD_SHARED_NFS": shared.nfs,
            "TRAINYARD_SHARED_DISK": shared.disk if is_head else "",
            "TRAINYARD_SHARED_FOLDER": shared.folder if is_head else "",
        }
    )


def node_env(plan: ClusterPlan, host: HostPlan, shared: SharedFiles = ON_HEAD) -> str:
    """Return /etc/trainyard/node.env, which a node writes from birth.env, kind.env and storage.env."""
    return birth_env(plan, host) + kind_env(plan, host) + storage_env(host, shared)


def fabric_env(host: HostPlan) -> str:
    """Return fabric.env with NCCL's environment. The node adds its network interface's name."""
    return _env(fabrics()[host.machine.fabric].env)


def _env(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value) if value else ''}\n" for name, value in sorted(values.items()))


ALL_REDUCE = installed("yard/workloads/allreduce.py")
_REAL_GPUS = "/dev/nvidia"
_GIB = 4
"""Message size in GiB if the catalog has no floor. Three such buffers fit into the catalog's smallest GPU."""
_EMULATED_SIZE = "4M"  # on CPUs, larger messages take minutes


def render_gates(plan: ClusterPlan) -> str | None:
    """Return gates.json with the groups whose bandwidth is measured, or None if there are none.

    By default, only groups with real GPUs are measured, because emulated machines take a minute. A number in the stack
    file is a floor in GB/s. It applies to pairs of nodes and, if the catalog has no floor, to a group's only node.
    """
    if plan.busbw_gate == "off" or plan.scheduler != "slurm":
        return None
    first = {host.group: host for host in reversed(plan.workers) if host.machine.gpus}
    groups = {
        str(group): _group(plan, host)
        for group, host in sorted(first.items(), key=lambda item: str(item[0]))
        if plan.busbw_gate != "default" or host.machine.gpu_device == _REAL_GPUS
    }
    return json.dumps(groups, indent=1, sort_keys=True) + "\n" if groups else None


def _group(plan: ClusterPlan, host: HostPlan) -> dict[str, Any]:
    floors, is_real = host.machine.floors, host.machine.gpu_device == _REAL_GPUS
    number = plan.busbw_gate if isinstance(plan.busbw_gate, float) else None
    node, pair = (floors.node, floors.pair) if floors else (None, None)
    sizes = [f"{gib or _GIB}G" for gib in ((floors.node_gib, floors.pair_gib) if floors else (None, None))]
    has_pairs = sum(worker.group == host.group for worker in plan.workers) > 1
    return {
        "alone": number if node is None and not has_pairs else node,
        "pair": pair if number is None else number,
        # Emulated machines have one core, which is too slow for a second rank.
        "ranks": host.machine.gpus if is_real else 1,
        "real_gpus": is_real,
        "sizes": sizes if is_real else [_EMULATED_SIZE] * 2,
        "drain_unmeasured": plan.unmeasured == "drain",
        "env": dict(fabrics()[host.machine.fabric].env),
    }


_SILENT_SECONDS = 15
_SILENT_CLOUD_SECONDS = 35
"""Clouds pause machines for maintenance. Each pause is assumed to take at most 30 seconds."""


START_SECONDS = 1200
"""How long the machine of an elastic node can take from its start until slurmd registers. A GPU machine can take 15
minutes until sshd accepts connections."""


def render_repair(
    plan: ClusterPlan,
    channel: Mapping[str, str] | None = None,
    budget: Mapping[str, Any] | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
) -> str | None:
    """Return repair.json, or None without Slurm. A node counts as lost after `silent_seconds` of silence.

    `channel` describes how the head starts and stops machines (repair/channels.py). Elastic groups need it. `budget` is
    the cost limit with the prices (repair/budget.py). With monitoring, the metrics contain the cost at `usd_per_hour`.
    """
    if plan.scheduler != "slurm":
        return None
    groups = {name: _repair_group(plan, name) for name in plan.groups}
    power: dict[str, Any] = {}
    if plan.is_elastic:
        power = {"power": {"start_seconds": START_SECONDS, "channel": channel}}
    if plan.idle_minutes is not None:
        power["power"]["sleep"] = {"head": plan.head.name, "idle_seconds": 60 * plan.idle_minutes}
    seconds = _SILENT_CLOUD_SECONDS if isinstance(plan.platform, CloudSpec) else _SILENT_SECONDS
    limits: dict[str, Any] = {} if budget is None else {"budget": budget}
    if (idle := plan.limits.idle_gpu) is not None:
        limits["idle_gpu"] = {"minutes": idle.minutes, "action": idle.action}
    if plan.monitoring is not None:
        limits["metrics"] = {"usd_per_hour": usd_per_hour or {}}
    return json.dumps({"silent_seconds": seconds, **power, **limits, "groups": groups}, indent=1) + "\n"


def _repair_group(plan: ClusterPlan, name: str) -> dict[str, Any]:
    section = plan.groups[name]
    rows: dict[str, Any] = {
        "spares": section.spares,
        "nodes": {host.name: str(host.private_ip) for host in plan.group(name) if host != plan.head},
    }
    if section.elastic is not None:
        rows["elastic"] = {"min": section.elastic.min, "idle_seconds": 60 * section.elastic.idle_minutes}
    return rows


def kind_files(plan: ClusterPlan, host: HostPlan, shared: SharedFiles | None) -> tuple[NodeFile, ...]:
    """Return files with the parameters and the ordered stages for all hosts of this kind.

    If `shared` is None, return the files for user-data, which has only some stages and no storage parameters.
    """
    folder = f"kinds/{kind_of(host)}"
    stages = [
        file.stage
        for file in files_for(host.machine.fabric, plan.containers, host.driver)
        if file.stage and (file.is_birth or shared is not None)
    ]
    birth = (
        NodeFile(f"{folder}/kind.env", kind_env(plan, host)),
        NodeFile(f"{folder}/stages", "".join(f"{stage}\n" for stage in stages)),
    )
    if shared is None:
        return birth
    lock, monitoring = driver_lock(plan, host), render_parameters(plan)
    return (
        *birth,
        *(() if lock is None else (NodeFile(f"{folder}/driver.lock", lock),)),
        NodeFile(f"{folder}/fabric.env", fabric_env(host)),
        NodeFile(f"{folder}/storage.env", storage_env(host, shared)),
        *([NodeFile(f"{folder}/monitoring.env", monitoring)] if monitoring else []),
    )
