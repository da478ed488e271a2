"""Rendered files of each stack, compared with golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from components.node.bundle import bundle_files
from components.node.handover import hosts_block
from components.node.parameters import ON_HEAD
from components.node.slurm import render_cgroup_conf, render_gres_conf, render_slurm_conf, render_slurmdbd_conf
from components.node.user_data import AccessKeys, render_user_data
from components.plan.plan import ClusterPlan, HostPlan
from components.stackfile.read import read_stack

ROOT = Path(__file__).parents[1]
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
    """Return user-data without the contents of shipped files. test_install.py checks these contents."""
    mark = "\n=== /"
    head, *files = render_user_data(plan, host, KEYS).split(mark)
    return mark.join([head, *files[:3]]) + "\n"


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
def test_user_data_of_each_role(file: Path, golden: CheckGolden) -> None:
    plan = read_stack(file).plan
    golden(f"{stack_name(file)}/user-data-head.mime", own_part(plan, plan.head))
    for group in plan.groups:
        golden(f"{stack_name(file)}/user-data-{group}.mime", own_part(plan, plan.group(group)[0]))


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
def test_bundle_of_each_stack(file: Path, golden: CheckGolden) -> None:
    # test_install.py checks the contents of shipped files.
    files = bundle_files(read_stack(file).plan, ON_HEAD)
    shown = [f"=== {file.path}\n" + (file.text if file.path.startswith("kinds/") else "") for file in files]
    golden(f"{stack_name(file)}/bundle", "".join(shown))


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
