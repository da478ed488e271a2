"""Checks on the sections of a stack file, each as soon as the sections that it needs are well-formed."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from components.checks.base import Draft
from components.errors import Problem
from components.explain import nearest
from components.plan import group_capacity

_CONTAINER_NETWORK = IPv4Network("172.17.0.0/16")
"""Docker's default bridge; packages on nodes and in clouds' images take it without asking."""


def machine_known(draft: Draft) -> Iterator[Problem]:
    """Every machine type is one of the platform's."""
    if draft.platform is None:
        return
    known = list(draft.platform.known_machines())
    for path, name in _machines_asked_for(draft):
        if name not in known:
            meant = nearest(name, known)
            some = ", ".join(known) or "your own, under platform.machines"
            fix = f"write {meant}" if meant else f"use one of {some}"
            yield Problem(path=path, rule=f"must be a machine type of the platform {draft.platform.provider}", fix=fix)


def group_fits(draft: Draft) -> Iterator[Problem]:
    """Every group fits into its block of the network."""
    if draft.network is None or (draft.platform is not None and draft.platform.existing() is not None):
        return
    capacity = group_capacity(draft.network.cidr)
    for name, group in draft.nodes.items():
        if group.count > capacity:
            yield Problem(
                path=f"cluster.nodes.{name}.count",
                rule=f"{group.count} nodes do not fit: in {draft.network.cidr} each group has {capacity} addresses",
                fix=f"use {capacity} or fewer, or a wider cluster.network.cidr",
            )


def network_free(draft: Draft) -> Iterator[Problem]:
    """The network is not one that something on every node takes for itself."""
    if draft.network is not None and draft.network.cidr.overlaps(_CONTAINER_NETWORK):
        yield Problem(
            path="cluster.network.cidr",
            rule=f"{draft.network.cidr} overlaps {_CONTAINER_NETWORK}, which Docker's default bridge takes on nodes",
            fix="choose another private range, for example 10.77.0.0/20",
        )


def head_gpus_idle(draft: Draft) -> Iterator[Problem]:
    """The head runs no jobs, so GPUs in it are paid for and never used."""
    if draft.platform is None or draft.head is None:
        return
    existing = draft.platform.existing() or {}
    works = any((draft.head.host or next(iter(existing), None)) in group.hosts for group in draft.nodes.values())
    machine = draft.platform.known_machines().get(draft.head.machine)
    if machine is not None and machine.gpus and not works:
        yield Problem(
            path="cluster.head.machine",
            rule=f"{machine.name} has {machine.gpus} GPUs, and the head runs no jobs",
            fix="use a machine type without GPUs for the head",
        )


def hosts_known(draft: Draft) -> Iterator[Problem]:
    """Groups list machines that exist, each once, where there are such; elsewhere they count what is to be made."""
    if draft.platform is None:
        return
    existing = draft.platform.existing()
    taken: dict[str, str] = {}
    for path, name in _hosts_asked_for(draft):
        if existing is None:
            fix = "remove it; a group's machines follow from its count"
            yield Problem(path=path, rule=f"the platform {draft.platform.provider} makes its machines itself", fix=fix)
        elif name not in existing:
            meant = nearest(name, list(existing))
            fix = f"write {meant}" if meant else f"list it there, or use one of {', '.join(existing)}"
            yield Problem(path=path, rule="must be one of cluster.platform.hosts", fix=fix)
        elif path.startswith("cluster.nodes") and name in taken:
            yield Problem(path=path, rule=f"{name} is listed in {taken[name]} already", fix="keep one of the two")
        elif path.startswith("cluster.nodes"):
            taken[name] = path
    for name, group in draft.nodes.items():
        if existing is not None and not group.hosts:
            fix = "add `hosts: [...]` with names of cluster.platform.hosts, in the place of count"
            yield Problem(path=f"cluster.nodes.{name}.hosts", rule="is missing: these machines exist already", fix=fix)


def _hosts_asked_for(draft: Draft) -> Iterator[tuple[str, str]]:
    if draft.head is not None and draft.head.host is not None:
        yield "cluster.head.host", draft.head.host
    for group, wish in draft.nodes.items():
        for index, name in enumerate(wish.hosts):
            yield f"cluster.nodes.{group}.hosts.{index}", name


def _machines_asked_for(draft: Draft) -> Iterator[tuple[str, str]]:
    if draft.head is not None:
        yield "cluster.head.machine", draft.head.machine
    for name, group in draft.nodes.items():
        yield f"cluster.nodes.{name}.machine", group.machine
