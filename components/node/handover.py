"""The hand-over: a tar archive with the data that user-data must not contain.

The head stores it and sends each worker its part (cloud-init/README.md).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from components.node.bundle import Bundle, archived
from components.node.monitoring import render_monitoring
from components.node.parameters import render_gates
from components.node.people import render_accounts, render_keys, render_people
from components.node.slurm import (
    render_cgroup_conf,
    render_gres_conf,
    render_job_container_conf,
    render_plugstack_conf,
    render_slurm_conf,
    render_slurmdbd_conf,
)
from components.node.user_data import ADMIN_USER, JOB_USER, Login, admin_keys
from components.plan.plan import ClusterPlan


def hosts_block(plan: ClusterPlan) -> str:
    """Return the lines for /etc/hosts, starting with the head."""
    return "".join(f"{host.private_ip} {host.name}\n" for host in plan.hosts)


def hostfile(plan: ClusterPlan) -> str:
    """Return DeepSpeed's hostfile with the nodes that run jobs. A node without GPUs has one slot."""
    return "".join(f"{host.name} slots={host.machine.gpus or 1}\n" for host in plan.nodes)


def known_hosts(plan: ClusterPlan, host_keys: Mapping[str, str]) -> str:
    """Return the lines for known_hosts, which contain names and private addresses."""
    return "".join(f"{host.name},{host.private_ip} {host_keys[host.name]}\n" for host in plan.hosts)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Keys that are not in user-data, so that rotating them replaces no machines. SSH keys have OpenSSH's format."""

    munge_key: str
    """Base64 text."""
    cluster_key: str
    """The private key that the head uses to log in to workers, with its certificate. Workers receive neither."""
    cluster_certificate: str
    database_password: str
    """The password of slurmdbd's user in MariaDB. It contains only letters and digits."""
    authority_public: str
    admin_public: str
    cluster_public: str
    user_public: str
    """The job user's key."""
    alert_webhook: str | None = None
    """The URL that receives alerts."""


def bundle_message(bundle: Bundle) -> str:
    """Return the input for `trainyard-receive --bundle`. The head receives the bundle before the other files."""
    return pack({"bundle.sha256": f"{bundle.digest}\n".encode(), "bundle.tar": bundle.archive})


def handover_files(
    plan: ClusterPlan,
    host_keys: Mapping[str, str],
    secrets: Secrets,
    bundle: Bundle,
    repair: str | None = None,
) -> dict[str, bytes]:
    """Return a mapping from relative path to content for the files in the head's hand-over.

    `repair` is the content of repair.json (render_repair), or None without Slurm.
    """
    # The gate checks the InfiniBand partition of hosts with `same_fabric`, while the cloud itself enforces `compact`.
    nodes = "".join(
        f"{host.name} {host.private_ip} {host.group} {host.machine.gpus} "
        f"{'same_fabric' if host.placement == 'same_fabric' else 'any'}\n"
        for host in plan.workers
    )
    principals = Login.ADMIN.principal(secrets.admin_public), Login.HEAD.principal(secrets.cluster_public)
    admins = admin_keys(plan.head.private_ip, secrets.authority_public, *principals)
    text = {
        "bundle.sha256": f"{bundle.digest}\n",
        "cluster_key": secrets.cluster_key,
        # ssh reads the certificate from a file with this name.
        "cluster_key-cert.pub": f"{secrets.cluster_certificate}\n",
        "hostfile": hostfile(plan),
        "hosts": hosts_block(plan),
        "known_hosts": known_hosts(plan, host_keys),
        "nodes": nodes,
        "people": render_people(plan),
        "slurm/cgroup.conf": render_cgroup_conf(plan),
        "slurm/gres.conf": render_gres_conf(plan),
        "slurm/job_container.conf": render_job_container_conf(plan),
        "slurm/plugstack.conf": render_plugstack_conf(plan),
        "slurm/slurm.conf": render_slurm_conf(plan),
        "slurm/slurmdbd.conf": f"{render_slurmdbd_conf(plan)}StoragePass={secrets.database_password}\n",
        **render_accounts(plan),
        **render_monitoring(plan, secrets.alert_webhook),
        **render_keys(plan, {ADMIN_USER: admins, JOB_USER: [secrets.user_public.strip()]}),
    }
    optional = {"repair.json": repair, "gates.json": render_gates(plan)}
    text |= {path: content for path, content in optional.items() if content is not None}
    return {
        "munge.key": base64.b64decode(secrets.munge_key),
        **{path: content.encode() for path, content in text.items()},
    }


def pack(files: Mapping[str, bytes]) -> str:
    """Return the files as a base64 tar archive with modes that allow only the owner to read the files."""
    return base64.b64encode(archived((path, files[path], 0o600) for path in sorted(files))).decode()
