"""The hand-over: what the head must be told and must not find in user-data. A pure function from facts to a tar.

The head keeps it in /var/lib/trainyard/handover and gives each worker its part of it; cloud-init/README.md says how.
"""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Mapping

from components.plan import ClusterPlan, HostPlan
from components.slurm import render_cgroup_conf, render_gres_conf, render_slurm_conf, render_slurmdbd_conf


def hosts_block(plan: ClusterPlan) -> str:
    """Return the lines of /etc/hosts for every host of the cluster, head first."""
    return "".join(f"{host.private_ip} {host.name}\n" for host in plan.hosts)


def hostfile(plan: ClusterPlan) -> str:
    """Return the nodes that jobs run on in DeepSpeed's form; one without a GPU has one slot."""
    return "".join(f"{host.name} slots={host.machine.gpus or 1}\n" for host in plan.nodes)


def known_hosts(plan: ClusterPlan, host_keys: Mapping[str, str]) -> str:
    """Return ssh known_hosts lines: each host under its name and its private address."""
    return "".join(f"{host.name},{host.private_ip} {host_keys[host.name]}\n" for host in plan.hosts)


def handover_files(
    plan: ClusterPlan, host_keys: Mapping[str, str], munge_key: str, cluster_key: str
) -> dict[str, bytes]:
    """Return the hand-over's files by relative path. `munge_key` is base64, `cluster_key` an OpenSSH private key."""
    nodes = "".join(
        f"{host.name} {host.private_ip} {host.group} {host.machine.gpus} {_fabric(host)}\n" for host in plan.workers
    )
    text = {
        "cluster_key": cluster_key,
        "hostfile": hostfile(plan),
        "hosts": hosts_block(plan),
        "known_hosts": known_hosts(plan, host_keys),
        "nodes": nodes,
        "slurm/cgroup.conf": render_cgroup_conf(plan),
        "slurm/gres.conf": render_gres_conf(plan),
        "slurm/slurm.conf": render_slurm_conf(plan),
        "slurm/slurmdbd.conf": render_slurmdbd_conf(plan),
    }
    return {"munge.key": base64.b64decode(munge_key), **{path: content.encode() for path, content in text.items()}}


def _fabric(host: HostPlan) -> str:
    """Return `same_fabric` if the gate must prove the host's InfiniBand partition, else `any`.

    The cloud keeps the other placements, so a change from `none` to `compact` changes no hand-over.
    """
    return host.placement if host.placement == "same_fabric" else "any"


def pack(files: Mapping[str, bytes]) -> str:
    """Return a base64 tar of the files, owner-only, the same bytes for the same files whenever it is made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size = len(files[path])
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(files[path]))
    return base64.b64encode(buffer.getvalue()).decode()
