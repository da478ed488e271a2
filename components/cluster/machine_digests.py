"""Digests of machines. If a machine's digest changes, `up` may replace or restart the machine, or end its jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from components.node.parameters import birth_env
from components.plan.plan import ClusterPlan, HostPlan

_DIGITS = 16
VERSION = "2"
"""Prefix of each digest. If a release computes digests from other facts, unchanged machines get new digests, so the
prefix must also change."""


def machine_digests(plan: ClusterPlan) -> dict[str, str]:
    """Return the digest of each host by name.

    Existing hosts are changed in place, so their digests contain only their roles. The digests do not cover the image,
    because a new image replaces only the machines in TRAINYARD_ROLL. They do not cover the access keys or the address
    of the shared storage, because these are known only after the corresponding resources have been created.
    """
    if plan.uses_existing_hosts:
        return {host.name: _digest(host.role.value) for host in plan.hosts}
    common = [
        plan.platform.model_dump(mode="json", exclude=set(plan.platform.beside_machines)),
        [plan.storage.kind, plan.storage.address, plan.storage.path],
        # Removing Slurm ends Slurm's jobs.
        plan.scheduler,
    ]
    return {host.name: _digest([*common, _host_facts(plan, host)]) for host in plan.hosts}


def changed_or_removed_hosts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that are missing from `after` or have a different digest there, in the order of `before`.

    Digests from another VERSION are not compared. Added hosts are not returned.
    """
    return tuple(
        name
        for name, digest in before.items()
        if name not in after or (_version(digest) == VERSION and digest != after[name])
    )


def _host_facts(plan: ClusterPlan, host: HostPlan) -> list[object]:
    group = plan.groups[host.group] if host.group is not None else None
    return [
        birth_env(plan, host),
        host.machine.name,
        host.placement,
        group.capacity.model_dump(mode="json") if group else None,
    ]


def _version(digest: str) -> str:
    return digest.partition("-")[0]


def _digest(facts: object) -> str:
    return f"{VERSION}-" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]
