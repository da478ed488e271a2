"""File layout: names and docstrings."""

from __future__ import annotations

import ast

import pytest

from components.platforms import PLATFORMS
from tests.architecture.modules import ROOT, modules, nodes

VAGUE = {"util", "utils", "helper", "helpers", "manager", "managers", "misc"}
REQUIRED = {"spec", "facts", "platform", "rules"}
"""Modules or packages in every platform: model, facts, cluster resources, and checks."""


def test_every_module_has_a_docstring() -> None:
    trees = {name: tree for name in modules() for tree in nodes(name)[:1] if isinstance(tree, ast.Module)}
    assert [name for name, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_no_module_has_a_vague_name() -> None:
    assert [name for name in modules() if VAGUE & set(name.split("."))] == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_platforms_have_the_same_file_names(platform: str) -> None:
    folder = ROOT / "components" / "platforms" / platform
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert names >= REQUIRED
