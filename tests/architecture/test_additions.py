"""Additions that must be complete, and code that only one module in the project may contain."""

from __future__ import annotations

import ast
import re
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
from tests.architecture.modules import ROOT, modules, nodes
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


DYNAMIC_PROVIDERS = {"components.keys", "components.host_keys", "components.platforms.local.provider"}
"""Pulumi's state contains the names of these modules, so renaming one breaks existing stacks."""


def test_one_module_starts_pulumi_and_reads_its_environment() -> None:
    every = [(name, node) for name in modules() for node in nodes(name)]
    lists = [(name, node.elts[0]) for name, node in every if isinstance(node, ast.List | ast.Tuple) and node.elts]
    starts = {name for name, node in lists if isinstance(node, ast.Constant) and node.value == "pulumi"}
    reads = {name for name, node in every if isinstance(node, ast.Constant) and node.value == "env.sh"}
    assert starts == reads == {"yard.stack.pulumi"}


def test_the_modules_of_dynamic_providers_are_pinned() -> None:
    found = {
        name
        for name, path in modules().items()
        for node in nodes(name)
        if isinstance(node, ast.ClassDef) and any("ResourceProvider" in ast.unparse(base) for base in node.bases)
        if name.startswith("components.")
    }
    assert found == DYNAMIC_PROVIDERS


def test_one_module_spells_the_prefix_of_reasons() -> None:
    folders = ("trainyard", "yard", "components", "cloud-init/files", "offline", "tools")
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(errors="replace")
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    # Other words that end with these letters are allowed, for example AFFINITY:.
    assert [name for name, text in texts.items() if re.search(r"\bTY:", text)] == ["trainyard/faults.py"]
