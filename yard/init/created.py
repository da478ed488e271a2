"""The cluster section of a stack whose platform creates the machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from components.catalog import machines
from yard.init.known import GROUP, Known, Section

_NETWORK = "10.77.0.0/20"
NO_LIMIT = "none"
"""The answer that sets no price limit."""


def head_machine(provider: str) -> str:
    """Return the first machine type without GPUs in the catalog. Types with a known price are preferred."""
    without = [machine for machine in machines(provider).values() if not machine.gpus]
    return min(without, key=lambda machine: machine.usd_per_hour is None).name


def created_section(
    known: Known, platform: Section, *, placement: Callable[[str], str] | None = None, storage: Section
) -> Section:
    """Return the cluster section. Values of `known.base` are kept unless an answer replaces them.

    `placement` returns the placement for a machine type. If `placement` is None, the platform supports only the
    default.
    """
    base, head = known.base, known.base.get("head") or {"machine": head_machine(platform["provider"])}
    # All regions offer the head's machine type, so this type is used until the answer is known.
    machine = known.get("machine") or head["machine"]
    group: Section = {**known.group, "machine": machine, "count": int(known.get("count") or 1)}
    if placement is not None and machine != known.group.get("machine"):
        group = {"machine": machine, "count": group["count"], "placement": placement(machine)}
    name = next(iter(base.get("nodes", {})), GROUP)
    kept: Section = {key: base[key] for key in ("containers", "mirrors") if key in base}
    return {
        "name": known.get("name") or "new",
        "platform": platform,
        "scheduler": base.get("scheduler", "slurm"),
        **kept,
        "network": base.get("network", {"cidr": _NETWORK}),
        "head": head,
        "nodes": {name: group},
        "storage": base.get("storage", {"shared": storage}),
    }


def with_access(known: Known, section: Section) -> Section:
    """Return the section with SSH access from the given networks or, if there are none, through the SSH gateway."""
    networks = known.get("ssh_from").split()
    access: Section = {"allow_ssh_from": networks, "via": "public"} if networks else {"via": "bastion"}
    return {**section, "access": access}


def with_limit(known: Known, section: Section) -> Section:
    """Return the section with the price limit."""
    budget = known.get("budget")
    if budget in {"", NO_LIMIT}:
        return section
    return {**section, "limits": {"max_usd_per_hour": number(budget)}}


def number(text: str) -> Any:
    """Return the number in a text: an integer if possible, otherwise a float. Raises ValueError."""
    value = float(text)
    return int(value) if value.is_integer() else value
