"""Tests that fail if a new check, platform, machine type or stage is incomplete."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from components.catalog import machines
from components.plan.check import Check
from components.platforms import PLATFORMS
from components.platforms.gcp.spec import family_of
from components.platforms.registry import platform_facts
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from tests.conftest import ROOT
from yard.sizing import largest_gb

COMPONENTS = ROOT / "components"
STAGES = sorted((ROOT / "cloud-init" / "files" / "usr" / "local" / "lib" / "trainyard" / "stages").iterdir())
WITH_CHECKS = sorted(file for file in COMPONENTS.rglob("*.py") if "\n@check(" in file.read_text())


def module_name(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")


@pytest.mark.parametrize("file", WITH_CHECKS, ids=module_name)
def test_every_check_of_a_module_is_registered(file: Path) -> None:
    registered: list[Check[Any]] = [*DRAFT_CHECKS, *PLAN_CHECKS]
    registered += [found for provider in PLATFORMS for found in platform_facts(provider).checks]
    known = {found.find for found in registered}
    checks = [item for item in vars(import_module(module_name(file))).values() if isinstance(item, Check)]
    assert [found.id for found in checks if found.find not in known] == []


def test_every_platform_package_is_registered() -> None:
    packages = {file.parent.name for file in (COMPONENTS / "platforms").glob("*/spec.py")}
    assert packages == set(PLATFORMS)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: str(stage.name))
def test_stage_declares_when_it_runs(stage: Path) -> None:
    assert re.search(r"(?m)^# runs: (once|every boot|every pass)$", stage.read_text())


@pytest.mark.parametrize("machine", sorted(machines("gcp")))
def test_every_google_machine_type_has_a_family(machine: str) -> None:
    assert family_of(machine).boot_disks


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_every_gpu_type_has_a_memory_size(provider: str) -> None:
    known = [machine for machine in machines(provider).values() if machine.has_nvidia_gpus]
    assert [machine.name for machine in known if largest_gb(machine.gpu_type) is None] == []
