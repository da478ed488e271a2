"""Checks of individual sections in a stack file. A check is skipped if a section that it needs is invalid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

from components.plan.check import Broken, Check, Draft, Level, check, checks_in
from components.plan.plan import group_capacity
from components.spec.explain import nearest
from components.spec.model import existing_hosts, machine_types

_CONTAINER_NETWORK = IPv4Network("172.17.0.0/16")
"""The network of Docker's default bridge, which exists in cloud images and on nodes with Docker."""


@check("machine-known", Level.ERROR, "write {similar}", "use one of {types}")
def machine_known(draft: Draft) -> Iterator[Broken]:
    """Every machine type exists on the platform."""
    known = draft.known_machines
    if known is None:
        return
    for path, name in draft.machines.items():
        if name not in known:
            with_gpu = [each for each, machine in known.items() if machine.gpu_type == name.lower()]
            similar = " or ".join(with_gpu) or nearest(name, list(known))
            types = ", ".join(known) or "a machine type that you add to platform.machines"
            yield Broken(
                path=path,
                rule=f"must be a machine type of the platform {draft.provider}",
                words={"similar": similar, "types": types},
                fix=0 if similar else 1,
            )


@check("group-fits", Level.ERROR, "use {capacity} or fewer, or a larger cluster.network.cidr")
def group_fits(draft: Draft) -> Iterator[Broken]:
    """No group has more nodes than its block has addresses."""
    if draft.network is None or (draft.platform is not None and existing_hosts(draft.platform) is not None):
        return
    capacity = group_capacity(draft.network.cidr)
    for name, group in draft.nodes.items():
        if group.count > capacity:
            yield Broken(
                path=f"cluster.nodes.{name}.count",
                rule=f"{group.count} nodes do not fit: in {draft.network.cidr} each group has {capacity} addresses",
                words={"capacity": capacity},
            )


@check("network-free", Level.ERROR, "choose another private range, for example 10.77.0.0/20")
def network_free(draft: Draft) -> Iterator[Broken]:
    """The network does not overlap Docker's default network."""
    if draft.network is not None and draft.network.cidr.overlaps(_CONTAINER_NETWORK):
        yield Broken(
            path="cluster.network.cidr",
            rule=f"{draft.network.cidr} overlaps {_CONTAINER_NETWORK}, the network of Docker's default bridge",
        )


@check("head-gpus-idle", Level.WARNING, "use a machine type without GPUs for the head")
def head_gpus_idle(draft: Draft) -> Iterator[Broken]:
    """A head that runs no jobs has no GPUs."""
    if draft.platform is None or draft.head is None:
        return
    existing = existing_hosts(draft.platform) or {}
    runs_jobs = any((draft.head.host or next(iter(existing), None)) in group.hosts for group in draft.nodes.values())
    machine = machine_types(draft.platform).get(draft.head.machine)
    if machine is not None and machine.gpus and not runs_jobs:
        yield Broken(
            path="cluster.head.machine", rule=f"{machine.name} has {machine.gpus} GPUs, but the head runs no jobs"
        )


@check(
    "hosts-known",
    Level.ERROR,
    "remove it, because the platform creates as many machines as the group's count specifies",
    "write {similar}",
    "add it to cluster.platform.hosts, or use one of {existing}",
    "remove one of the two",
    "add `hosts: [...]` with names from cluster.platform.hosts instead of count",
)
def hosts_known(draft: Draft) -> Iterator[Broken]:
    """On existing hosts, each group lists its hosts, and no host is listed twice. Other platforms use `count`."""
    if draft.platform is None:
        return
    existing = existing_hosts(draft.platform)
    taken: dict[str, str] = {}
    for path, name in _host_fields(draft):
        if existing is None:
            yield Broken(
                path=path, rule=f"the platform {draft.platform.provider} creates its machines and has no existing hosts"
            )
        elif name not in existing:
            similar = nearest(name, list(existing))
            words = {"similar": similar, "existing": ", ".join(existing)}
            yield Broken(path=path, rule="must be one of cluster.platform.hosts", words=words, fix=1 if similar else 2)
        elif path.startswith("cluster.nodes") and name in taken:
            yield Broken(path=path, rule=f"{name} is already listed in {taken[name]}", fix=3)
        elif path.startswith("cluster.nodes"):
            taken[name] = path
    for name, group in draft.nodes.items():
        if existing is not None and not group.hosts:
            yield Broken(path=f"cluster.nodes.{name}.hosts", rule="is required on existing hosts", fix=4)


def _host_fields(draft: Draft) -> Iterator[tuple[str, str]]:
    if draft.head is not None and draft.head.host is not None:
        yield "cluster.head.host", draft.head.host
    for name, group in draft.nodes.items():
        for index, host in enumerate(group.hosts):
            yield f"cluster.nodes.{name}.hosts.{index}", host


DRAFT_CHECKS: tuple[Check[Draft], ...] = checks_in(sys.modules[__name__])
