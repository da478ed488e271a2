"""Imports between modules have no cycles. Imports under TYPE_CHECKING are included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.modules import ROOT, folder, imports, modules, reachable


def test_no_module_imports_itself_through_others() -> None:
    assert [module for module in modules() if module in reachable(module)] == []


def test_no_two_packages_import_each_other() -> None:
    # No module imports an entry point (`__main__`), so an entry point may be in the package below its imports.
    importers = [name for name in modules() if not name.endswith("__main__")]
    found = {(folder(name), folder(other)) for name in importers for other in imports(name) & modules().keys()}
    assert {(one, other) for one, other in found if one < other and (other, one) in found} == set()


@pytest.mark.parametrize(
    "module",
    [
        "components.cluster.cluster",
        "components.platforms.registry",
        "components.stackfile.read",
        "yard.run.schedulers",
        "yard.run.script",
    ],
)
def test_a_module_can_be_imported_first(module: str) -> None:
    # Runs in a new process, because modules that other tests have already imported would hide an import cycle.
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True)
