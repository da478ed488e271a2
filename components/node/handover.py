"""The hand-over: a tar archive with the data that user-data must not contain.

The head stores it in /var/lib/trainyard/handover and sends each worker its part (see cloud-init/README.md).
"""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from components.node.bundle import Bundle
from components.node.parameters import render_gates, render_repair
from components.node.slurm import (
    render_cgroup_conf,
    render_gres_conf,
    render_plugstack_conf,
    render_slurm_conf,
    render_slurmdbd_conf,
)
from components.plan.plan import ClusterPlan, HostPlan


def hosts_block(plan: ClusterPlan) -> str:
    """Return the /etc/hosts lines for all hosts. The head is first."""
    return "".join(f"{host.private_ip} {host.name}\n" for host in plan.hosts)


def hostfile(plan: ClusterPlan) -> str:
    """Return DeepSpeed's hostfile, which lists the nodes that run jobs. A node without GPUs has one slot."""
    return "".join(f"{host.name} slots={host.machine.gpus or 1}\n" for host in plan.nodes)


def known_hosts(plan: ClusterPlan, host_keys: Mapping[str, str]) -> str:
    """Return the known_hosts lines for all hosts. Each line contains the name and the private address."""
    return "".join(f"{host.name},{host.private_ip} {host_keys[host.name]}\n" for host in plan.hosts)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Keys for the nodes. The keys are not in user-data, so a rotation does not replace machines."""

    munge_key: str
    """Base64."""
    cluster_key: str
    """OpenSSH private key with which the head logs in to workers. Workers do not receive it."""
    user_public: str
    """OpenSSH public key of the job user."""


def bundle_message(bundle: Bundle) -> str:
    """Return the input of `trainyard-receive --bundle`. The head receives the bundle before the other files."""
    return pack({"bundle.sha256": f"{bundle.digest}\n".encode(), "bundle.tar": bundle.archive})


def handover_files(
    plan: ClusterPlan, host_keys: Mapping[str, str], secrets: Secrets, bundle: Bundle
) -> dict[str, bytes]:
    """Return the files in the hand-over to the head, by relative path. One file contains the digest of the bundle."""
    nodes = "".join(
        f"{host.name} {host.private_ip} {host.group} {host.machine.gpus} {_fabric(host)}\n" for host in plan.workers
    )
    text = {
        "bundle.sha256": f"{bundle.digest}\n",
        "cluster_key": secrets.cluster_key,
        "hostfile": hostfile(plan),
        "hosts": hosts_block(plan),
        "known_hosts": known_hosts(plan, host_keys),
        "nodes": nodes,
        "slurm/cgroup.conf": render_cgroup_conf(plan),
        "slurm/gres.conf": render_gres_conf(plan),
        "slurm/plugstack.conf": render_plugstack_conf(plan),
        "slurm/slurm.conf": render_slurm_conf(plan),
        "slurm/slurmdbd.conf": render_slurmdbd_conf(plan),
        "user_key.pub": secrets.user_public.strip() + "\n",
    }
    repair = render_repair(plan)
    if repair is not None:
        text["repair.json"] = repair
    gates = render_gates(plan)
    if gates is not None:
        text["gates.json"] = gates
    return {
        "munge.key": base64.b64decode(secrets.munge_key),
        **{path: content.encode() for path, content in text.items()},
    }


def _fabric(host: HostPlan) -> str:
    """Return `same_fabric` if the gate must check the host's InfiniBand partition, else `any`.

    The cloud enforces the placement `compact`, so the hand-over does not distinguish it from `none`.
    """
    return host.placement if host.placement == "same_fabric" else "any"


def pack(files: Mapping[str, bytes]) -> str:
    """Return a base64 tar archive of the files. Equal files result in equal archives.

    The files in the archive are readable only by their owner.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(files[path]))
    return base64.b64encode(buffer.getvalue()).decode()
