"""Describes stack files. `python -m yard.preview.describe` prints the descriptions of all stacks as JSON.

Descriptions depend only on files in the checkout and contain no private keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from components.node.bundle import bundle_files
from components.node.parameters import ON_HEAD
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.node.user_data import AccessKeys, cloud_config, install_script, render_user_data
from components.plan.check import Computer, Level
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.demand import hourly_price, quota_needs, services, used_prices, used_sources
from components.platforms.registry import platform_facts
from components.stackfile.read import Stack, read_stack
from trainyard.checkout import ROOT
from trainyard.errors import CatalogError, Problem, StackFileError
from yard.preview.shape import (
    CONTRACT,
    Description,
    HostShape,
    PlanShape,
    PriceShape,
    ProblemShape,
    QuotaShape,
    ServiceShape,
)
from yard.preview.storage import describe_storage
from yard.stack.workspace import stack_names

PLACEHOLDERS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")
"""Placeholders for public keys, which `pulumi up` creates."""


def describe(stack: str, folder: Path = ROOT / "stacks", computer: Computer | None = None) -> Description:
    """Return the description of the stack. The description of a rejected file contains only its problems.

    `computer`: see `Planned`.
    """
    path = folder / f"Pulumi.{stack}.yaml"
    try:
        read = read_stack(path, computer)
    except StackFileError as error:
        return _refused(stack, error.problems)
    except CatalogError as error:
        return _refused(stack, [Problem(path="cluster", rule=str(error), fix="correct the catalog file")])
    return describe_valid(stack, read)


def describe_valid(stack: str, read: Stack) -> Description:
    """Return the description of a valid stack."""
    return {
        **_refused(stack, ()),
        "remarks": [_problem(finding.check, finding.level, finding.problem) for finding in read.findings],
        "plan": _plan(read.plan),
        "price": _price(read.plan),
        "services": [
            ServiceShape(name=each.name, usd_per_hour=each.usd, region=each.region, priced=each.priced)
            for each in services(read.plan)
        ],
        "storage": describe_storage(read.plan),
        "quota": [
            QuotaShape(quota=each.quota, place=each.region, amount=each.amount) for each in quota_needs(read.plan)
        ],
        "user_data_bytes": dict(_sizes(read.plan)),
        "user_data_limit": platform_facts(read.plan.provider).user_data_limit,
        "files": dict(_files(read.plan)),
    }


def _refused(stack: str, problems: Iterable[Problem]) -> Description:
    return Description(
        stack=stack,
        file=f"stacks/Pulumi.{stack}.yaml",
        problems=[_problem("", Level.ERROR, problem) for problem in problems],
        remarks=[],
        plan=None,
        price=None,
        services=[],
        storage=None,
        quota=[],
        user_data_bytes={},
        user_data_limit=0,
        files={},
    )


def _problem(check: str, level: Level, problem: Problem) -> ProblemShape:
    return ProblemShape(check=check, level=level.value, path=problem.path, rule=problem.rule, fix=problem.fix)


def _plan(plan: ClusterPlan) -> PlanShape:
    return PlanShape(
        name=plan.name,
        provider=plan.provider,
        place=plan.region,
        scheduler=plan.scheduler,
        network=str(plan.network),
        image=plan.image.name,
        hosts=[_host(plan, host) for host in plan.hosts],
    )


def _host(plan: ClusterPlan, host: HostPlan) -> HostShape:
    group = plan.groups[host.group] if host.group is not None else None
    return HostShape(
        name=host.name,
        role=host.role.value,
        group=host.group or "",
        ip=str(host.private_ip),
        machine=host.machine.name,
        gpus=host.machine.gpus,
        gpu_type=host.machine.gpu_type or "",
        fabric=host.machine.fabric,
        placement=group.placement if group else "none",
        capacity=group.capacity.kind if group else "on_demand",
    )


def _price(plan: ClusterPlan) -> PriceShape:
    price, used = hourly_price(plan), used_prices(plan)
    return PriceShape(
        usd=price.usd,
        total=price.total,
        unpriced=list(price.unpriced),
        dated=min((row.dated for row in used), default=""),
        regions=list(dict.fromkeys(row.region for row in used)),
        sources=list(used_sources(plan)),
    )


def _roles(plan: ClusterPlan) -> Iterator[tuple[str, HostPlan]]:
    """Yield the head and the first host in each group. Hosts in a group differ only in name and address."""
    yield "head", plan.head
    for group in plan.groups:
        yield group, plan.group(group)[0]


def _sizes(plan: ClusterPlan) -> Iterator[tuple[str, int]]:
    for role, host in _roles(plan):
        yield role, len(render_user_data(plan, host, PLACEHOLDERS).encode())


def _files(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each rendered file."""
    yield "slurm.conf", render_slurm_conf(plan)
    yield "gres.conf", render_gres_conf(plan)
    # The location of the shared files is known only after the storage exists.
    yield "bundle", "".join(f"=== {file.path}\n{file.text}" for file in bundle_files(plan, ON_HEAD))
    for role, host in _roles(plan):
        yield f"user-data of {role}", cloud_config(plan, host, PLACEHOLDERS) + install_script(plan, host)


if __name__ == "__main__":
    json.dump(
        {"contract": CONTRACT, "stacks": {name: describe(name) for name in stack_names()}},
        sys.stdout,
    )
