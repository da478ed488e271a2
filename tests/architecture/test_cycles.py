"""Imports between modules have no cycles. Imports under TYPE_CHECKING are included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.modules import ROOT, modules, reachable


def test_no_module_imports_itself_through_others() -> None:
    assert [module for module in modules() if module in reachable(module)] == []


@pytest.mark.parametrize(
    "module",
    [
        "components.cluster.cluster",
        "components.platforms.facts",
        "components.stackfile.read",
        "yard.run.schedulers.registry",
        "yard.script.render",
    ],
)
def test_a_module_can_be_imported_first(module: str) -> None:
    # Runs in a new process, because modules that other tests have already imported would hide an import cycle.
    subprocess.run([sys.executable, "-c", f"import {module}"], cwd=ROOT, check=True)
