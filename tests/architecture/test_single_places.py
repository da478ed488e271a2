"""Code that only one module in the project may contain."""

from __future__ import annotations

import ast
import re

from tests.architecture.modules import ROOT, modules, nodes

DYNAMIC_PROVIDERS = {"components.keys", "components.host_keys", "components.platforms.local.provider"}
"""Pulumi's state contains the names of these modules, so renaming one breaks existing stacks."""


def test_one_module_starts_pulumi_and_reads_its_environment() -> None:
    every = [(name, node) for name in modules() for node in nodes(name)]
    lists = [(name, node.elts[0]) for name, node in every if isinstance(node, ast.List | ast.Tuple) and node.elts]
    starts = {name for name, node in lists if isinstance(node, ast.Constant) and node.value == "pulumi"}
    reads = {name for name, node in every if isinstance(node, ast.Constant) and node.value == "env.sh"}
    assert starts == reads == {"yard.stack.pulumi"}


def test_one_module_computes_the_root_of_the_checkout() -> None:
    found = {
        name
        for name, path in modules().items()
        for node in nodes(name)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and "__file__" in ast.unparse(node.value)
        and ast.unparse(node.value).endswith(".parents")
        and path.parents[int(str(node.slice.value))] == ROOT
    }
    assert found == {"trainyard.checkout"}


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
