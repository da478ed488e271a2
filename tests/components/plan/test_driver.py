"""The key `driver` of node groups: defaults and checks."""

from __future__ import annotations

import pytest

from components.catalog import images, machines
from components.node.slurm import render_gres_conf
from components.plan.check import Check, Planned
from components.plan.plan import driver_origin
from components.stackfile.plan_checks import PLAN_CHECKS
from tests.components.plan.test_checks import plan_with_driver


def check(name: str) -> Check[Planned]:
    [found] = [check for check in PLAN_CHECKS if check.id == name]
    return found


@pytest.mark.parametrize(
    ("machine", "image", "exists", "origin"),
    [
        ("Standard_ND96isr_H100_v5", "azure-ubuntu-24.04-hpc", False, "image"),
        ("Standard_ND96isr_H100_v5", "ubuntu-24.04", False, "install"),
        ("Standard_ND96isr_H100_v5", "debian-12", False, "image"),
        ("Standard_ND96isr_H100_v5", "debian-13", True, "image"),
        ("Standard_D8s_v5", "azure-ubuntu-24.04-hpc", False, "none"),
    ],
)
def test_default_is_from_facts_of_machine_and_image(machine: str, image: str, exists: bool, origin: str) -> None:
    assert driver_origin(None, machines("azure")[machine], images()[image], exists=exists) == origin


def test_fake_gpus_need_no_driver() -> None:
    assert {host.driver for host in plan_with_driver(None, gpu="fake").plan.workers} == {"none"}


def test_existing_hosts_install_only_on_request() -> None:
    assert [plan_with_driver(key, host=True).plan.head.driver for key in (None, "install")] == ["image", "install"]


def test_jobs_use_no_gpus_without_a_driver() -> None:
    plan = plan_with_driver("none").plan
    assert plan.workers[0].machine.gpus == 0
    assert "Name=gpu" not in render_gres_conf(plan)
    assert plan_with_driver("none", gpu="fake").plan.workers[0].machine.gpus == 2


@pytest.mark.parametrize(
    ("subject", "rule", "fix"),
    [
        (plan_with_driver("image"), "image debian-13 has no NVIDIA driver", "write `driver: install`"),
        (plan_with_driver("install", image="azure-ubuntu-24.04-hpc"), "already has NVIDIA driver 580", "remove it"),
        (plan_with_driver("install", image="ubuntu-22.04"), "no driver versions are locked", "debian-13, ubuntu-24.04"),
        (plan_with_driver("install", gpu="v100"), "Turing and later GPUs only", "different machine type"),
        (plan_with_driver("install", gpu="b200"), "do not support Blackwell", "different machine type"),
    ],
)
def test_groups_without_a_usable_driver_are_refused(subject: Planned, rule: str, fix: str) -> None:
    [problem] = check("driver-available").run(subject)
    assert rule in problem.rule
    assert fix in problem.fix


@pytest.mark.parametrize(
    "subject", [plan_with_driver("image", host=True), plan_with_driver(None, image="ubuntu-24.04")]
)
def test_groups_with_a_driver_are_accepted(subject: Planned) -> None:
    assert list(check("driver-available").run(subject)) == []


def test_unverified_versions_of_a_driver_are_reported() -> None:
    rules = [problem.rule for problem in check("unconfirmed").run(plan_with_driver("install", image="ubuntu-24.04"))]
    assert "unverified: packages, their hashes of driver 580.173.02 for ubuntu-24.04" in rules
