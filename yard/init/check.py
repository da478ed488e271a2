"""Checks the values of a new stack with the checks of stack files, and compares its price with the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor

from components.plan.check import Computer
from components.plan.plan import ClusterPlan
from components.platforms.demand import host_usd, hourly_price, services
from components.stackfile.read import CLUSTER_KEY, parse_config
from trainyard.errors import Problem, StackFileError
from yard.init.created import NO_LIMIT
from yard.init.known import Known, Section
from yard.init.platforms import STARTERS

FLAGS: Mapping[str, str] = {
    "cluster.access": "--ssh-from",
    "cluster.limits": "--budget",
    "cluster.name": "NAME",
    "cluster.platform.hosts": "--host",
    "cluster.platform.image": "--image",
    "cluster.platform.project": "--project",
    "cluster.platform.region": "--region",
    "cluster.platform.zone": "--region",
}
"""Options by path in the stack file. An option also applies to the values below its path."""
_OF_GROUP: Mapping[str, str] = {"count": "--count", "hosts": "--host", "machine": "--machine"}


def section_of(known: Known) -> Section:
    """Return the cluster section for the values that are known so far. The provider must be known."""
    return STARTERS[known.get("provider")].section(known)


def problems_of(known: Known, option: str, computer: Computer | None = None) -> list[Problem]:
    """Return the problems of the values that are known so far.

    Each problem's path names the option of `yard init` that sets the value, or is `option` if no option sets it.
    `computer`: see `Planned`.
    """
    try:
        # If the price exceeds the budget, a separate message contains the largest possible count.
        plan = _plan(known.without("budget"), computer)
        if over_budget := list(_over_budget(known, plan)):
            return over_budget
        _plan(known, computer)
    except StackFileError as error:
        return [Problem(path=_option(each.path, option), rule=each.rule, fix=each.fix) for each in error.problems]
    return []


def _plan(known: Known, computer: Computer | None = None) -> ClusterPlan:
    """Return the plan for the values that are known so far. Raises StackFileError."""
    return parse_config({CLUSTER_KEY: section_of(known)}, "the new stack", computer=computer).plan


def prices_line(known: Known) -> str:
    """Return a line with the known list prices of the nodes and of everything else. The values must pass the checks."""
    plan = _plan(known.without("budget"))
    cost, count = cost_of(plan), len(plan.workers)
    node = f"${cost.node:.2f}/h" if cost.node else "unknown"
    total = f", in total ${cost.of(count):.2f}/h" if cost.node else ""
    return f"known list prices: {count} x {node} for the nodes, ${cost.rest:.2f}/h for head and storage{total}"


def _option(path: str, option: str) -> str:
    if path.startswith("cluster.nodes."):
        key = path.removeprefix("cluster.nodes.").partition(".")[2].partition(".")[0]
        return _OF_GROUP.get(key, option)
    return next((flag for start, flag in FLAGS.items() if path == start or path.startswith(f"{start}.")), option)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Known list prices in dollars per hour: of one node, and of everything else in the cluster."""

    node: float
    rest: float

    def of(self, count: int) -> float:
        """Return the price of a cluster with `count` nodes."""
        return self.node * count + self.rest


def cost_of(plan: ClusterPlan) -> Cost:
    """Return the known list prices of a plan with one node group."""
    nodes = sum(host_usd(host) or 0 for host in plan.workers)
    total = hourly_price(plan).usd + sum(service.usd or 0 for service in services(plan))
    return Cost(node=nodes / len(plan.workers) if plan.workers else 0, rest=total - nodes)


def _over_budget(known: Known, plan: ClusterPlan) -> Iterator[Problem]:
    """Yield a problem if the known list prices exceed the budget. The fix names the largest affordable count."""
    if known.get("budget") in {"", NO_LIMIT}:
        return
    budget, cost, count = float(known.get("budget")), cost_of(plan), len(plan.workers)
    if cost.of(count) <= budget:
        return
    largest = floor((budget - cost.rest) / cost.node + 1e-9) if cost.node else 0
    count = count if largest else 1
    what = "1 machine" if count == 1 else f"{count} machines"
    rule = f"{what} with head and storage cost {cost.of(count):.2f} dollars an hour; the budget is {budget:g}"
    fix = f"use a budget of {ceil(cost.of(count))} or more"
    if largest < 1:
        yield Problem(path="--budget", rule=rule, fix=f"{fix}, or a smaller machine")
    else:
        yield Problem(path="--count", rule=rule, fix=f"use {largest} or fewer, or {fix.removeprefix('use ')}")
