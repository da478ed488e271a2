"""Tests that fail if a new module, check, platform or machine type is incomplete."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from components.catalog import machines
from components.plan.check import Check
from components.platforms import PLATFORMS
from components.platforms.gcp.spec import family_of
from components.platforms.registry import platform_facts
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from tests.architecture.modules import ROOT, modules
from yard.sizing import largest_gb

WITH_CHECKS = sorted(name for name, path in modules().items() if "\n@check(" in path.read_text())


@pytest.mark.parametrize("module", WITH_CHECKS)
def test_every_check_of_a_module_is_registered(module: str) -> None:
    registered: list[Check[Any]] = [*DRAFT_CHECKS, *PLAN_CHECKS]
    registered += [found for provider in PLATFORMS for found in platform_facts(provider).checks]
    known = {found.find for found in registered}
    checks = [item for item in vars(import_module(module)).values() if isinstance(item, Check)]
    assert [found.id for found in checks if found.find not in known] == []


def test_every_platform_package_is_registered() -> None:
    packages = {file.parent.name for file in (ROOT / "components" / "platforms").glob("*/spec.py")}
    assert packages == set(PLATFORMS)


def test_every_google_machine_type_has_a_family() -> None:
    assert [machine for machine in machines("gcp") if not family_of(machine).boot_disks] == []


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_every_gpu_type_has_a_memory_size(provider: str) -> None:
    known = [machine for machine in machines(provider).values() if machine.has_nvidia_gpus]
    assert [machine.name for machine in known if largest_gb(machine.gpu_type) is None] == []
