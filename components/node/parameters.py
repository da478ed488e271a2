"""Parameters for the scripts on a node, as files with shell variables.

birth.env is in user-data and contains the facts that do not change while the machine exists. The other files are in the
bundle, once for each kind of node, and can change while the node is running.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from components.catalog import fabrics
from components.node.driver import driver_version, mirror_program
from components.plan.plan import ClusterPlan, HostPlan, Role


@dataclass(frozen=True, kw_only=True)
class SharedFiles:
    """Location of /home and /shared. By default, the head serves them from its root disk."""

    source: str = ""
    """An NFS export that all hosts mount ("10.0.0.2:/shared"), or empty if the head is the server."""
    nfs: str = "4.2"
    """The NFS version to mount."""
    id_domain: str = ""
    """The NFSv4 domain for user names that clients must use, or empty for the default."""
    disk: str = ""
    """Block device of the head's data disk, or empty if the files are on the root disk."""
    folder: str = ""
    """A folder on the head to mount at /shared, or empty if /shared is an ordinary folder."""


ON_HEAD = SharedFiles()


def kind_of(host: HostPlan) -> str:
    """Return the kind of a host: hosts with the same role and group have the same stages and parameters."""
    return f"{host.role.value}-{host.group}" if host.group else host.role.value


def birth_env(plan: ClusterPlan, host: HostPlan) -> str:
    """Return /etc/trainyard/birth.env: the names and addresses of the node and the head."""
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
    """Return kind.env: scheduler, container runtime, and facts about the machine type and the image."""
    machine = host.machine
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
        }
    )


def storage_env(host: HostPlan, shared: SharedFiles) -> str:
    """Return storage.env: the location of /home and /shared."""
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
    """Return /etc/trainyard/node.env, which the node writes from its birth.env, kind.env and storage.env."""
    return birth_env(plan, host) + kind_env(plan, host) + storage_env(host, shared)


def fabric_env(host: HostPlan) -> str:
    """Return fabric.env: NCCL's environment for the fabric. The node adds the name of its network interface."""
    return _env(fabrics()[host.machine.fabric].env)


def _env(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value) if value else ''}\n" for name, value in sorted(values.items()))
