"""The smoke sizes of the recipes on real nodes, wherever the nodes have the software that a recipe names."""

from __future__ import annotations

import re

import pytest

from jobs.loader import has_smoke, load_job, recipe_names
from tests.integration.project import Project

pytestmark = [pytest.mark.integration, pytest.mark.full]

_ON_THE_MACHINES = re.compile(r"torch( 2\.[0-6] or newer)?")
"""The software that the virtual machines have, in a recipe's words: torch 2.6."""


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_runs_at_its_smoke_size(recipe: str, cluster: Project) -> None:
    if not has_smoke(recipe):
        spec = load_job(recipe, {}, {}, []).spec
        pytest.skip(f"no smoke size: {spec.unproved or spec.proved}")
    software = load_job(recipe, {}, {}, [], smoke=True).spec.software
    if software and not _ON_THE_MACHINES.fullmatch(software):
        pytest.skip(f"needs {software}")
    cluster.yard("submit", recipe, "--smoke", "--follow", timeout=600)
