"""Describes stack files. `python -m yard.preview.describe` prints a snapshot of each stack as JSON.

Snapshots depend only on files in the project and on this code, and contain no private keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from components.node.bundle import bundle_files
from components.node.parameters import ON_HEAD
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.node.user_data import AccessKeys, cloud_config, install_script, render_user_data
from components.plan.check import Computer, Finding, Level
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.demand import known_usd, quota_needs, unpriced
from components.stackfile.read import read_stack
from trainyard import project
from trainyard.errors import CatalogError, Problem, StackFileError
from trainyard.project import stack_file
from yard.stack.workspace import stack_names

CONTRACT = 3
"""Version of `Snapshot`. Snapshots with different versions are not compared."""
PLACEHOLDERS = AccessKeys("ssh-ed25519 AAAAauthority authority@cluster")
"""Stand-ins for the public keys that `pulumi up` creates."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The amount of a quota that the stack needs in the region `place`."""

    quota: str
    place: str
    amount: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The parts of a description that can be compared with another revision.

    `usd` is the sum of all known prices per hour, and `priced` states whether every price is known.
    """

    hosts: list[str]
    usd: float
    priced: bool
    quota: list[list[str | int]]
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Description:
    """A stack file's plan and the checks' findings. `plan` is None if the file is invalid."""

    stack: str
    plan: ClusterPlan | None
    findings: tuple[Finding, ...]

    @property
    def file(self) -> str:
        """The stack file's path in the project."""
        return stack_file(self.stack)

    @cached_property
    def quota(self) -> list[Quota]:
        needs = quota_needs(self.plan) if self.plan else ()
        return [Quota(quota=each.quota, place=each.region, amount=each.amount) for each in needs]

    @cached_property
    def user_data_bytes(self) -> dict[str, int]:
        """Mapping from role to the size of its user-data."""
        if (plan := self.plan) is None:
            return {}
        return {role: len(render_user_data(plan, host, PLACEHOLDERS).encode()) for role, host in _roles(plan)}

    @cached_property
    def snapshot(self) -> Snapshot:
        if self.plan is None:
            return Snapshot(hosts=[], usd=0.0, priced=False, quota=[], files={})
        return Snapshot(
            hosts=[host.name for host in self.plan.hosts],
            usd=known_usd(self.plan),
            priced=not unpriced(self.plan),
            quota=[[each.quota, each.place, each.amount] for each in self.quota],
            files=dict(_files(self.plan)),
        )


def describe(stack: str, file: Path | None = None, computer: Computer | None = None) -> Description:
    """Return a stack's description, even if its file is invalid. `file` replaces the file in the project.

    For `computer`, see `Planned`.
    """
    try:
        read = read_stack(file or project.ROOT / stack_file(stack), computer)
        return Description(stack=stack, plan=read.plan, findings=read.findings)
    except StackFileError as error:
        problems = error.problems
    except CatalogError as error:
        problems = (Problem(path="cluster", rule=str(error), fix="correct the catalog file"),)
    findings = tuple(Finding(check="", level=Level.ERROR, problem=problem) for problem in problems)
    return Description(stack=stack, plan=None, findings=findings)


def _roles(plan: ClusterPlan) -> Iterator[tuple[str, HostPlan]]:
    """Yield the head and each group's first host, because a group's hosts differ only in name and address."""
    yield "head", plan.head
    for group in plan.groups:
        yield group, plan.group(group)[0]


def _files(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    yield "slurm.conf", render_slurm_conf(plan)
    yield "gres.conf", render_gres_conf(plan)
    # The shared files' location is known only after the storage exists.
    yield "bundle", "".join(f"=== {file.path}\n{file.text}" for file in bundle_files(plan, ON_HEAD))
    for role, host in _roles(plan):
        yield f"user-data of {role}", cloud_config(plan, host, PLACEHOLDERS) + install_script(plan, host)


if __name__ == "__main__":
    snapshots = {name: asdict(describe(name).snapshot) for name in stack_names()}
    json.dump({"contract": CONTRACT, "stacks": snapshots}, sys.stdout)
