"""Describes stack files. `python -m yard.preview.describe` prints the snapshots of all stacks as JSON.

Descriptions depend only on files in the checkout and contain no private keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

from components.node.bundle import bundle_files
from components.node.parameters import ON_HEAD
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.node.user_data import AccessKeys, cloud_config, install_script, render_user_data
from components.plan.check import Computer, Finding, Level
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.demand import hourly_price, quota_needs, services, storage_mib_s
from components.stackfile.read import Stack, read_stack
from trainyard.checkout import ROOT
from trainyard.errors import CatalogError, Problem, StackFileError
from yard.job.loader import load_job, recipe_names
from yard.job.spec import JobSpec
from yard.sizing import Batch, Machines, Model, SizeError, largest_gb, model_named, parse_layout, size
from yard.stack.workspace import stack_names

CONTRACT = 3
"""Version of `Snapshot`. Snapshots with different versions are not compared."""
PLACEHOLDERS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")
"""Placeholders for public keys, which `pulumi up` creates."""
_CHECKPOINT_BYTES = 14
"""Bytes per parameter: 2 for weights, 12 for Adam's state (ZeRO, arXiv 1910.02054, 3.1). Gradients are not saved."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """How much of a quota the stack needs in the region `place`, in the quota's unit."""

    quota: str
    place: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint of a model. `minutes` is the time to write it, or None if the storage's throughput is unknown."""

    model: str
    gb: float
    minutes: float | None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The parts of a description that are compared with those of another revision.

    `usd` is the sum of the known prices per hour, and `priced` states whether all prices are known.
    """

    hosts: list[str]
    usd: float
    priced: bool
    quota: list[list[str | int]]
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Description:
    """A stack file with the findings of its checks. The plan is None if the file is invalid."""

    stack: str
    plan: ClusterPlan | None
    findings: tuple[Finding, ...]

    @property
    def file(self) -> str:
        """The path of the stack file in the checkout."""
        return f"stacks/Pulumi.{self.stack}.yaml"

    @cached_property
    def quota(self) -> list[Quota]:
        """The required quotas."""
        needs = quota_needs(self.plan) if self.plan else ()
        return [Quota(quota=each.quota, place=each.region, amount=each.amount) for each in needs]

    @cached_property
    def user_data_bytes(self) -> dict[str, int]:
        """The size of each role's user-data."""
        if (plan := self.plan) is None:
            return {}
        return {role: len(render_user_data(plan, host, PLACEHOLDERS).encode()) for role, host in _roles(plan)}

    @cached_property
    def snapshot(self) -> Snapshot:
        """The parts that are compared with another revision."""
        if self.plan is None:
            return Snapshot(hosts=[], usd=0.0, priced=False, quota=[], files={})
        return Snapshot(
            hosts=[host.name for host in self.plan.hosts],
            usd=known_usd(self.plan),
            priced=all_priced(self.plan),
            quota=[[each.quota, each.place, each.amount] for each in self.quota],
            files=dict(_files(self.plan)),
        )


def describe(stack: str, folder: Path = ROOT / "stacks", computer: Computer | None = None) -> Description:
    """Return the description of the stack. `computer`: see `Planned`."""
    try:
        return describe_valid(stack, read_stack(folder / f"Pulumi.{stack}.yaml", computer))
    except StackFileError as error:
        problems = error.problems
    except CatalogError as error:
        problems = (Problem(path="cluster", rule=str(error), fix="correct the catalog file"),)
    findings = tuple(Finding(check="", level=Level.ERROR, problem=problem) for problem in problems)
    return Description(stack=stack, plan=None, findings=findings)


def describe_valid(stack: str, read: Stack) -> Description:
    """Return the description of a valid stack."""
    return Description(stack=stack, plan=read.plan, findings=read.findings)


def known_usd(plan: ClusterPlan) -> float:
    """Return the sum of the known list prices of machines, storage and gateway in dollars per hour."""
    return hourly_price(plan).usd + sum(service.usd or 0 for service in services(plan))


def all_priced(plan: ClusterPlan) -> bool:
    """Return whether the prices of all machines, the storage and the gateway are known."""
    return hourly_price(plan).total is not None and all(service.usd is not None for service in services(plan))


def largest_checkpoint(plan: ClusterPlan) -> Checkpoint | None:
    """Return the checkpoint of the largest model that a recipe can train on the stack, or None if no model fits."""
    model = max(_fitting(plan), key=lambda fitting: fitting.parameters, default=None)
    if model is None:
        return None
    written, rate = model.parameters * _CHECKPOINT_BYTES, storage_mib_s(plan)
    minutes = None if rate is None else round(written / (rate * 2**20) / 60, 1)
    return Checkpoint(model=model.name, gb=round(written / 1e9, 1), minutes=minutes)


def _fitting(plan: ClusterPlan) -> Iterator[Model]:
    """Yield the models of all recipes that fit a node group's nodes and GPU memory."""
    for group in plan.groups:
        hosts = plan.group(group)
        machine = hosts[0].machine
        gb = largest_gb(machine.gpu_type)
        if gb is None or not machine.gpus:
            continue
        for recipe in _recipes():
            if recipe.nodes <= len(hosts) and recipe.model is not None and _fits(recipe, machine.gpus, gb):
                yield model_named(recipe.model)


@cache
def _recipes() -> tuple[JobSpec, ...]:
    """Return the recipes that specify a model."""
    return tuple(spec for spec in (load_job(name, {}, {}, []).spec for name in recipe_names()) if spec.model)


def _fits(recipe: JobSpec, gpus_per_node: int, gb: float) -> bool:
    machines = Machines(nodes=recipe.nodes, gpus_per_node=gpus_per_node)
    try:
        found = size(model_named(str(recipe.model)), parse_layout(recipe.layout), machines, Batch(recompute=True), gb)
    except SizeError:
        return False
    return found.fits


def _roles(plan: ClusterPlan) -> Iterator[tuple[str, HostPlan]]:
    """Yield the head and the first host in each group. Hosts in a group differ only in name and address."""
    yield "head", plan.head
    for group in plan.groups:
        yield group, plan.group(group)[0]


def _files(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each rendered file."""
    yield "slurm.conf", render_slurm_conf(plan)
    yield "gres.conf", render_gres_conf(plan)
    # The location of the shared files is known only after the storage exists.
    yield "bundle", "".join(f"=== {file.path}\n{file.text}" for file in bundle_files(plan, ON_HEAD))
    for role, host in _roles(plan):
        yield f"user-data of {role}", cloud_config(plan, host, PLACEHOLDERS) + install_script(plan, host)


if __name__ == "__main__":
    snapshots = {name: asdict(describe(name).snapshot) for name in stack_names()}
    json.dump({"contract": CONTRACT, "stacks": snapshots}, sys.stdout)
