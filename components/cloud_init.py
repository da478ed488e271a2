"""User-data of a host: a #cloud-config and the install script in one archive. Pure functions of a plan and keys.

What never differs between hosts lies under cloud-init/ as it is; what differs enters as Python data. No secret is in
it: any process on a node, and the cloud's console, can read user-data.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

from components.catalog import fabrics, images
from components.errors import CatalogError
from components.install import START, NodeFile, files_for, render_install
from components.plan import ClusterPlan, HostPlan, Role

ADMIN_USER, ADMIN_UID, ADMIN_HOME = "ops", 1500, "/var/lib/ops"
"""Who provisions. The home is outside /home, which the head's export covers on workers."""
JOB_USER, JOB_UID, JOB_HOME = "trainer", 2000, "/home/trainer"
"""Who runs jobs; the same number everywhere, for NFS and Slurm."""

_FOLDER = Path(__file__).parent.parent / "cloud-init"


@dataclass(frozen=True)
class AccessKeys:
    """Public halves, in OpenSSH form: the admin's, and the head's for handing keys to workers."""

    admin_public: str
    cluster_public: str


@dataclass(frozen=True, kw_only=True)
class SharedFiles:
    """Where /home and /shared are. By default on the head's own root disk, and the head serves them."""

    source: str = ""
    """An NFS export that every host mounts ("10.0.0.2:/shared"); empty: the head serves its own."""
    nfs: str = "4.2"
    """The version of NFS that whoever serves them speaks."""
    id_domain: str = ""
    """The domain of user names that NFSv4 clients must use; empty: their own."""
    disk: str = ""
    """The head's block device that holds them and outlives the head; empty: its root disk."""
    folder: str = ""
    """A folder of the head that becomes its /shared, on another disk perhaps; empty: /shared itself."""


_ON_HEAD = SharedFiles()


def render_user_data(plan: ClusterPlan, host: HostPlan, keys: AccessKeys, shared: SharedFiles = _ON_HEAD) -> str:
    """Return the host's user-data. A worker's depends on the head and on itself, never on other workers."""
    return (
        f"#cloud-config-archive\n- content: |\n{_block(cloud_config(plan, host, keys))}  type: text/cloud-config\n"
        f"- content: |\n{_block(install_script(plan, host, shared))}  filename: trainyard-install\n"
        "  type: text/x-shellscript\n"
    )


def cloud_config(plan: ClusterPlan, host: HostPlan, keys: AccessKeys) -> str:
    """Return the part that cloud-init itself carries out: names, users, ssh. It reads it a dozen times, so it is small.

    Raises CatalogError when two fragments say different things about the same key.
    """
    # No domain: a cloud's metadata would otherwise add one, another on every platform.
    own = {"hostname": host.name, "fqdn": host.name}
    shared = _shared(host.role, plan.image.name)
    return f"#cloud-config\n{shared}{_dump(own)}{_users(plan.head.private_ip, host.role, keys)}"


def install_script(plan: ClusterPlan, host: HostPlan, shared: SharedFiles = _ON_HEAD, begin: str = START) -> str:
    """Return the script that writes the node's files and begins its bring-up by the command `begin`, as root."""
    own = (
        NodeFile("/etc/trainyard/node.env", node_env(plan, host, shared)),
        NodeFile("/etc/trainyard/fabric.env", fabric_env(plan, host)),
    )
    return render_install([*own, *files_for(host.machine.fabric, plan.containers)], begin)


def node_env(plan: ClusterPlan, host: HostPlan, shared: SharedFiles = _ON_HEAD) -> str:
    """Return /etc/trainyard/node.env: the one file of parameters that every script on the node reads."""
    machine = host.machine
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
            "TRAINYARD_SCHEDULER": plan.scheduler,
            "TRAINYARD_CONTAINERS": plan.containers,
            "TRAINYARD_GPUS": str(machine.gpus),
            "TRAINYARD_GPU_TYPE": machine.gpu_type or "",
            "TRAINYARD_GPU_DEVICE": machine.gpu_device or "",
            "TRAINYARD_DRIVER": plan.image.versions.get("driver", ""),
            "TRAINYARD_FABRIC": machine.fabric,
            "TRAINYARD_RDMA": str(machine.rdma),
            "TRAINYARD_RDMA_DEVICES": ",".join(machine.rdma_devices),
            "TRAINYARD_OS": plan.image.os,
            "TRAINYARD_SHARED_SOURCE": shared.source,
            "TRAINYARD_SHARED_DOMAIN": shared.id_domain,
            "TRAINYARD_SHARED_NFS": shared.nfs,
            "TRAINYARD_SHARED_DISK": shared.disk if host.role is Role.HEAD else "",
            "TRAINYARD_SHARED_FOLDER": shared.folder if host.role is Role.HEAD else "",
        }
    )


def fabric_env(plan: ClusterPlan, host: HostPlan) -> str:
    """Return the part of /etc/trainyard/fabric.env that the fabric decides; the node adds its interface's name."""
    return _env(fabrics()[host.machine.fabric].env)


def merge(first: Mapping[str, Any], second: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Join two cloud-configs: lists are chained, mappings joined. Raises CatalogError where they disagree."""
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        path = f"{where}{key}"
        if key not in merged:
            merged[key] = value
        elif isinstance(known, dict) and isinstance(value, dict):
            merged[key] = merge(known, value, f"{path}.")
        elif isinstance(known, list) and isinstance(value, list):
            merged[key] = [*known, *value]
        elif type(known) is not type(value) or known != value:
            raise CatalogError(f"cloud-init fragments disagree about {path}; keep it in one of them")
    return merged


def people(head: IPv4Address, role: Role, keys: AccessKeys) -> list[dict[str, Any]]:
    """Return the users of every host of a role as cloud-config describes them: the admin, then who runs jobs."""
    # Only the head uses the cluster key, and only to run commands on workers.
    from_head = f'restrict,from="{head}" {keys.cluster_public}'
    is_worker = role is Role.WORKER
    admin = {
        "name": ADMIN_USER,
        "uid": ADMIN_UID,
        "homedir": ADMIN_HOME,
        "gecos": "Trainyard administrator",
        "shell": "/bin/bash",
        "lock_passwd": True,
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": [keys.admin_public, *([from_head] if is_worker else [])],
    }
    job_user: dict[str, Any] = {
        "name": JOB_USER,
        "uid": JOB_UID,
        "homedir": JOB_HOME,
        "gecos": "Trainyard jobs",
        "shell": "/bin/bash",
        "lock_passwd": True,
    }
    # A worker's /home is the head's: cloud-init must write nothing below it.
    home = {"no_create_home": True} if is_worker else {"ssh_authorized_keys": [keys.admin_public]}
    return [admin, job_user | home]


@cache
def _users(head: IPv4Address, role: Role, keys: AccessKeys) -> str:
    """What every host of a role and cluster says of its users, as YAML text: the emitter is the slowest part of all."""
    return _dump({"users": people(head, role, keys)})


def _env(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value) if value else ''}\n" for name, value in sorted(values.items()))


@cache
def _shared(role: Role, image: str) -> str:
    """Return the cloud-config that every host of a role and image has in common, as YAML text."""
    base, own = (yaml.safe_load((_FOLDER / f"{name}.yaml").read_text()) or {} for name in ("base", role.value))
    merged = merge(merge(base, own), images()[image].cloud_config)
    generated = merged.keys() & {"hostname", "fqdn", "users"}
    if generated:
        raise CatalogError(
            f"cloud-init/*.yaml and the image's cloud_config set {', '.join(sorted(generated))}, "
            "which are written for each host; remove them"
        )
    return _dump(merged)


def _block(text: str) -> str:
    """Return a text as the lines of a YAML literal block. The emitter takes a hundred times as long for the same."""
    return "".join(line if line == "\n" else f"    {line}" for line in text.splitlines(keepends=True))


def _dump(value: Any) -> str:
    # Python's own emitter, not libyaml's: the same bytes whether or not the library is there.
    text: str = yaml.safe_dump(value, sort_keys=True, width=4096, allow_unicode=True)
    return text
