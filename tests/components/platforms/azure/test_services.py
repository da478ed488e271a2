"""Tests for the resource providers of all declared resources, and for their documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.platforms.azure.facts import FACTS, ROLES, SERVICES
from tests.components.platforms.azure.conftest import Build

PAGE = Path(__file__).parents[4] / "docs" / "platforms" / "azure.md"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("azure-a100", {}),
    ("azure-a100", {"storage__shared": {"kind": "azure_files", "size_gib": 1024}}),
    ("azure-h100", {}),
]


def types(build: Build) -> set[str]:
    """Return the Pulumi types of the resources in all variants."""
    made = {kind for stack, edits in VARIANTS for kind, _, _ in build(stack, **edits).resources}
    return {kind for kind in made if kind.startswith("azure-native:")}


def test_every_declared_type_has_a_resource_provider(build: Build) -> None:
    assert {kind.split(":")[1] for kind in types(build)} == set(SERVICES)


def test_every_billed_type_is_declared(build: Build) -> None:
    assert set(FACTS.billed) <= types(build)


@pytest.mark.parametrize("name", [*SERVICES.values(), *ROLES])
def test_the_page_names_every_provider_and_role(name: str) -> None:
    assert name in PAGE.read_text()
