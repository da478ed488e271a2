"""Rendered files of each stack, compared with golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from components.node.bundle import bundle_files
from components.node.handover import hosts_block
from components.node.parameters import ON_HEAD
from components.node.slurm import render_cgroup_conf, render_gres_conf, render_slurm_conf, render_slurmdbd_conf
from components.node.user_data import render_user_data
from components.plan.plan import ClusterPlan, HostPlan
from components.stackfile.read import read_stack
from tests.components.platforms.recording import KEYS
from tests.stack_texts import STACKS

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
    """Return user-data without the contents of shipped files. test_user_data.py checks these contents."""
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
    # test_user_data.py checks the contents of shipped files.
    files = bundle_files(read_stack(file).plan, ON_HEAD)
    shown = [f"=== {file.path}\n" + (file.text if file.path.startswith("kinds/") else "") for file in files]
    golden(f"{stack_name(file)}/bundle", "".join(shown))


@pytest.mark.parametrize("file", STACKS, ids=stack_name)
def test_hosts_and_slurm_of_each_stack(file: Path, golden: CheckGolden) -> None:
    plan = read_stack(file).plan
    golden(f"{stack_name(file)}/hosts", hosts_block(plan))
    for name, render in SLURM.items():
        golden(f"{stack_name(file)}/{name}", render(plan))


def test_slurm_of_each_version(plan_of_each_image: ClusterPlan, golden: CheckGolden) -> None:
    major, minor = plan_of_each_image.image.slurm_version
    for name, render in SLURM.items():
        golden(f"slurm-{major}.{minor:02}/{name}", render(plan_of_each_image))


def test_slurm_of_a_large_cluster(wide_plan: ClusterPlan, golden: CheckGolden) -> None:
    for name in ("slurm.conf", "gres.conf"):
        golden(f"wide/{name}", SLURM[name](wide_plan))
