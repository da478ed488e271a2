"""What every stack renders to, byte for byte, in files that are reviewed like code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from components.cloud_init import AccessKeys, render_user_data
from components.handover import hosts_block
from components.plan import ClusterPlan, HostPlan
from components.slurm import render_cgroup_conf, render_gres_conf, render_slurm_conf, render_slurmdbd_conf
from components.stackfile import read_stack

ROOT = Path(__file__).parent.parent
STACKS = sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")
SLURM = {
    "slurm.conf": render_slurm_conf,
    "gres.conf": render_gres_conf,
    "cgroup.conf": render_cgroup_conf,
    "slurmdbd.conf": render_slurmdbd_conf,
}

CheckGolden = Callable[[str, str], None]


def stack_name(file: Path) -> str:
    return file.stem.removeprefix("Pulumi.")


def own_part(plan: ClusterPlan, host: HostPlan) -> str:
    """Return user-data without the shipped files' contents: test_install.py compares those with the files."""
    mark = "\n    === /"
    head, *files = render_user_data(plan, host, KEYS).split(mark)
    return mark.join([head, *files[:2]]) + "\n"


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
def test_user_data_of_each_role(file: Path, golden: CheckGolden) -> None:
    plan = read_stack(file).plan
    golden(f"{stack_name(file)}/user-data-head.yaml", own_part(plan, plan.head))
    for group in plan.groups:
        golden(f"{stack_name(file)}/user-data-{group}.yaml", own_part(plan, plan.group(group)[0]))


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
@pytest.mark.parametrize("name", sorted(SLURM))
def test_slurm_of_each_stack(file: Path, name: str, golden: CheckGolden) -> None:
    golden(f"{stack_name(file)}/{name}", SLURM[name](read_stack(file).plan))


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
def test_hosts_of_each_stack(file: Path, golden: CheckGolden) -> None:
    golden(f"{stack_name(file)}/hosts", hosts_block(read_stack(file).plan))


@pytest.mark.parametrize("name", sorted(SLURM))
def test_slurm_of_each_version(name: str, plan_of_each_image: ClusterPlan, golden: CheckGolden) -> None:
    major, minor = plan_of_each_image.image.slurm_version
    golden(f"slurm-{major}.{minor:02}/{name}", SLURM[name](plan_of_each_image))


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf"])
def test_slurm_of_a_large_cluster(name: str, wide_plan: ClusterPlan, golden: CheckGolden) -> None:
    golden(f"wide/{name}", SLURM[name](wide_plan))
