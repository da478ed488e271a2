"""Checks for local stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network

from components.plan.check import Broken, Level, Planned, check
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.local.machine import OVERHEAD_MIB
from components.platforms.local.spec import LocalSpec
from components.platforms.shared_rules import in_group, in_platform
from components.spec.cluster import AccessSpec, SharedStorageSpec

GROUP_PORTS = 32
"""Fixed number of ports per node group. A group's ports do not depend on the sizes of other groups."""


def ssh_port(base: int, plan: ClusterPlan, host: HostPlan) -> int:
    """Return a host's SSH port. Node i of group g has port base + 1 + 32 g + i, where i and g start at 0."""
    if host.group is None:
        return base
    return base + 1 + list(plan.groups).index(host.group) * GROUP_PORTS + host.index


EXTERNAL_NETWORK = IPv4Network("10.0.2.0/24")
"""QEMU's user-mode network, which every local machine uses."""
_OTHER_BASES = range(22400, 60000, 300)
"""Values for ssh_port_base that the message about used ports can suggest. A stack uses at most 225 ports."""


@check("local-network", Level.ERROR, "choose a different private range, for example 10.77.0.0/20")
def network_free(planned: Planned) -> Iterator[Broken]:
    """The network does not overlap QEMU's user-mode network."""
    network = planned.plan.network
    if network.overlaps(EXTERNAL_NETWORK):
        rule = f"{network} overlaps {EXTERNAL_NETWORK}, which is QEMU's user-mode network"
        yield Broken(path="cluster.network.cidr", rule=rule)


@check("local-group-size", Level.ERROR, f"use {GROUP_PORTS} or fewer, or two groups")
def groups_fit(planned: Planned) -> Iterator[Broken]:
    """No group has more nodes than the number of SSH ports that are reserved for it."""
    for name, group in planned.plan.groups.items():
        if group.count > GROUP_PORTS:
            yield in_group(
                name, "count", f"a group on the local platform has at most {GROUP_PORTS} nodes, not {group.count}"
            )


@check("local-defaults", Level.ERROR, "leave it out")
def defaults_kept(planned: Planned) -> Iterator[Broken]:
    """Placement, capacity, shared storage and access use their default values."""
    plan = planned.plan
    set_by_stack = {
        **{f"nodes.{name}.placement": group.placement != "none" for name, group in plan.groups.items()},
        **{f"nodes.{name}.capacity": group.capacity.kind != "on_demand" for name, group in plan.groups.items()},
        "storage.shared": plan.storage != SharedStorageSpec(),
        "access": plan.access != AccessSpec(),
    }
    for path, is_set in set_by_stack.items():
        if is_set:
            yield Broken(
                path=f"cluster.{path}",
                rule="the local platform supports only the default, because all machines are on this computer, "
                "files are on the head's data disk, and SSH listens on 127.0.0.1",
            )


@check("local-memory", Level.ERROR, "use fewer or smaller machines, or free some memory")
def memory_suffices(planned: Planned) -> Iterator[Broken]:
    """This computer has enough memory for all machines."""
    if planned.computer is None:
        return
    needed = sum(host.machine.memory_mib + OVERHEAD_MIB for host in planned.plan.hosts)
    free = planned.computer.free_memory(planned.plan)
    if needed > free:
        rule = f"{len(planned.plan.hosts)} machines need {needed} MiB of memory, but only {free} MiB are free"
        yield Broken(path="cluster.nodes", rule=rule)


@check(
    "local-ports",
    Level.ERROR,
    "write `ssh_port_base: {free}` there, or stop the other cluster if it is yours",
    "choose a different port base there",
)
def ports_are_free(planned: Planned) -> Iterator[Broken]:
    """No other program on this computer uses the SSH ports of the machines."""
    plan, computer = planned.plan, planned.computer
    if computer is None:
        return

    def used(base: int) -> Sequence[int]:
        return computer.used_ports(plan, [ssh_port(base, plan, host) for host in plan.hosts])

    taken = used(plan.platform_spec(LocalSpec).ssh_port_base)
    if not taken:
        return
    free = next((base for base in _OTHER_BASES if not used(base)), None)
    ports = f"port {taken[0]}" if len(taken) == 1 else f"ports {', '.join(map(str, taken))}"
    rule = (
        f"{ports} on 127.0.0.1 {'is' if len(taken) == 1 else 'are'} in use by another program, for example the local "
        "cluster of another checkout"
    )
    yield in_platform("ssh_port_base", rule, fix=1 if free is None else 0, free=free)
