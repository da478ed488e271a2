"""File layout: names, sizes and docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from components.platforms import PLATFORMS
from tests.architecture.modules import ROOT, modules, nodes

MOST_LINES = 300
MOST_LOOSE_FILES_OF_YARD = 6
VAGUE = {"util", "utils", "helper", "helpers", "manager", "managers", "misc"}
REQUIRED = {"spec", "facts", "platform", "rules"}
"""Modules or packages in every platform: model, facts, cluster resources, and checks."""
SHARED = {
    "network",
    "machine",
    "storage",
    "tunnel",
    "host_keys",
    "layout",
    "machine_facts",
    "services",
    "quotas",
    "places",
    "bake",
}
"""Optional module names that have the same meaning in every platform."""
OF_ONE_PLATFORM = {
    "azure": {"aliases", "placement", "placement_resources", "resource_group"},
    "gcp": set(),
    "hosts": {"connect", "scripts"},
    "local": {
        "image",
        "memory",
        "paths",
        "ports",
        "probe",
        "process",
        "provider",
        "qemu",
        "qmp",
        "resources",
        "seed",
        "sweep",
    },
}
"""Module names that only one platform uses."""


DATA = {".json", ".md", ".pyc", ".yaml"}


def scripts() -> list[Path]:
    """Return the shell scripts, and all programs and stages of the nodes."""
    shell = [path for folder in ("yard", "tools") for path in sorted((ROOT / folder).rglob("*.sh"))]
    return [*shell, *(path for path in sorted((ROOT / "cloud-init").rglob("*")) if path.suffix not in DATA)]


def test_no_file_is_longer_than_the_limit() -> None:
    files = [*modules().values(), *filter(Path.is_file, scripts()), *(ROOT / "tests").rglob("*.py")]
    assert [path for path in files if len(path.read_text().splitlines()) > MOST_LINES] == []


def test_every_module_has_a_docstring() -> None:
    trees = {name: tree for name in modules() for tree in nodes(name)[:1] if isinstance(tree, ast.Module)}
    assert [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_no_module_has_a_vague_name() -> None:
    assert [name for name in modules() if VAGUE & set(name.split("."))] == []


def test_yard_has_few_loose_files() -> None:
    assert len(list((ROOT / "yard").glob("*.py"))) <= MOST_LOOSE_FILES_OF_YARD


@pytest.mark.parametrize("platform", PLATFORMS)
def test_platforms_have_the_same_file_names(platform: str) -> None:
    folder = ROOT / "components" / "platforms" / platform
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert names >= REQUIRED
    assert names <= REQUIRED | SHARED | OF_ONE_PLATFORM[platform]
