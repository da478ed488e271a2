"""A stack file as this revision reads it. `python -m jobs.preview.describe` prints all of them as JSON.

Pure but for reading the files of its own checkout: no engine, no network, no key that opens anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from components.checks import Finding, Level
from components.cloud_init import AccessKeys, cloud_config, fabric_env, node_env, render_user_data
from components.demand import hourly_price, quota_needs, services, used_prices
from components.errors import CatalogError, Problem, StackFileError
from components.install import files_for
from components.plan import ClusterPlan, HostPlan
from components.platforms import platform_class
from components.slurm import render_gres_conf, render_slurm_conf
from components.spec import ClusterSpec
from components.stackfile import Stack, read_stack
from jobs.preview.shape import (
    CONTRACT,
    Description,
    HostShape,
    PlanShape,
    PriceShape,
    ProblemShape,
    QuotaShape,
    ServiceShape,
)
from jobs.preview.storage import describe_storage

CHECKOUT = Path(__file__).resolve().parents[2]
PLACEHOLDERS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")
"""Stand for the public keys, which do not exist before `pulumi up` and differ in every stack."""


def stack_names() -> list[str]:
    """Return the names of all stack files, sorted."""
    files = (CHECKOUT / "stacks").glob("Pulumi.*.yaml")
    return sorted(file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files)


def describe(stack: str, folder: Path = CHECKOUT / "stacks") -> Description:
    """Return the stack's description: what its file says, or why it may not be used."""
    path = folder / f"Pulumi.{stack}.yaml"
    shown = f"stacks/{path.name}"
    try:
        return _described(stack, shown, read_stack(path))
    except StackFileError as error:
        return _refused(stack, shown, error.problems)
    except CatalogError as error:
        return _refused(stack, shown, [Problem(path="cluster", rule=str(error), fix="mend the project's own file")])


def _described(stack: str, shown: str, read: Stack) -> Description:
    return Description(
        stack=stack,
        file=shown,
        problems=[],
        remarks=[_remark(finding) for finding in read.remarks],
        plan=_plan(read.spec, read.plan),
        price=_price(read.plan),
        services=[
            ServiceShape(name=each.name, usd_per_hour=each.usd, region=each.region, priced=each.priced)
            for each in services(read.spec)
        ],
        storage=describe_storage(read.spec, read.plan),
        quota=[QuotaShape(quota=need.quota, place=need.place, amount=need.amount) for need in quota_needs(read.plan)],
        user_data_bytes=dict(_sizes(read.plan)),
        user_data_limit=platform_class(read.plan.provider).user_data_limit,
        files=dict(_files(read.plan)),
    )


def _refused(stack: str, shown: str, problems: Iterable[Problem]) -> Description:
    return Description(
        stack=stack,
        file=shown,
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


def _remark(finding: Finding) -> ProblemShape:
    return _problem(finding.check, finding.level, finding.problem)


def _problem(check: str, level: Level, problem: Problem) -> ProblemShape:
    return ProblemShape(check=check, level=level.value, path=problem.path, rule=problem.rule, fix=problem.fix)


def _plan(spec: ClusterSpec, plan: ClusterPlan) -> PlanShape:
    return PlanShape(
        name=plan.name,
        provider=plan.provider,
        place=plan.place,
        scheduler=plan.scheduler,
        network=str(plan.network),
        image=plan.image.name,
        hosts=[_host(spec, host) for host in plan.hosts],
    )


def _host(spec: ClusterSpec, host: HostPlan) -> HostShape:
    group = spec.nodes[host.group] if host.group is not None else None
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
    )


def _roles(plan: ClusterPlan) -> Iterator[tuple[str, HostPlan]]:
    """The head, and the first host of each group for all of its group: they differ in name and address alone."""
    yield "head", plan.head
    for group in plan.groups:
        yield group, plan.group(group)[0]


def _sizes(plan: ClusterPlan) -> Iterator[tuple[str, int]]:
    platform = platform_class(plan.provider)
    for role, host in _roles(plan):
        yield role, len(platform.wire_user_data(render_user_data(plan, host, PLACEHOLDERS)))


def _files(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    """What is rendered, in the form that says most to a reader: unpacked, whatever the packing in user-data is."""
    yield "slurm.conf", render_slurm_conf(plan)
    yield "gres.conf", render_gres_conf(plan)
    for role, host in _roles(plan):
        yield f"fabric.env of {role}", fabric_env(plan, host)
        parts = [cloud_config(plan, host, PLACEHOLDERS), f"=== /etc/trainyard/node.env\n{node_env(plan, host)}"]
        parts += [f"=== {file.path}\n{file.text}" for file in files_for(host.machine.fabric, plan.containers)]
        yield f"user-data of {role}", "".join(parts)


if __name__ == "__main__":
    json.dump({"contract": CONTRACT, "stacks": {name: describe(name) for name in stack_names()}}, sys.stdout)
