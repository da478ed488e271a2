"""Smoke runs of the recipes whose software is installed on the nodes."""

from __future__ import annotations

import re

import pytest

from tests.integration.project import Project
from yard.job.loader import has_smoke, load_job, recipe_names

pytestmark = [pytest.mark.integration, pytest.mark.full]

_ON_THE_MACHINES = re.compile(r"torch( 2\.[0-6] or newer)?")
"""Software on the virtual machines, by its name in recipes. The machines have torch 2.6."""


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipe_runs_at_its_smoke_size(recipe: str, cluster: Project) -> None:
    if not has_smoke(recipe):
        spec = load_job(recipe, {}, {}, []).spec
        pytest.skip(f"no smoke size: {spec.unverified or spec.verified}")
    software = load_job(recipe, {}, {}, [], smoke=True).spec.software
    if software and not _ON_THE_MACHINES.fullmatch(software):
        pytest.skip(f"needs {software}")
    cluster.yard("submit", recipe, "--smoke", "--follow", timeout=600)
