"""SSH ports of local machines."""

from __future__ import annotations

from components.plan.plan import ClusterPlan, HostPlan

GROUP_PORTS = 32
"""Number of ports for each node group. It is constant, so that a group's ports do not depend on other groups."""


def ssh_port(base: int, plan: ClusterPlan, host: HostPlan) -> int:
    """Return the SSH port of a host. The port of node i in group g is base + 1 + 32 g + i. Both i and g start at 0."""
    if host.group is None:
        return base
    return base + 1 + list(plan.groups).index(host.group) * GROUP_PORTS + host.index
