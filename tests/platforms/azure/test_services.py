"""Every kind of resource that the platform declares has its resource provider, and the page names all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.platforms.azure.platform import AzurePlatform
from components.platforms.azure.services import ROLES, SERVICES
from tests.platforms.azure.conftest import Build

PAGE = Path(__file__).parents[3] / "docs" / "platforms" / "azure.md"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("azure-a100", {}),
    ("azure-a100", {"storage__shared": {"kind": "azure_files", "size_gib": 1024}}),
    ("azure-h100", {}),
]


def types(build: Build) -> set[str]:
    """Return the Pulumi types of all resources of all variants."""
    made = {kind for stack, edits in VARIANTS for kind, _, _ in build(stack, **edits).resources}
    return {kind for kind in made if kind.startswith("azure-native:")}


def test_every_declared_type_has_a_resource_provider(build: Build) -> None:
    assert {kind.split(":")[1] for kind in types(build)} == set(SERVICES)


def test_every_billed_type_is_declared(build: Build) -> None:
    assert set(AzurePlatform.billed) <= types(build)


@pytest.mark.parametrize("name", [*SERVICES.values(), *ROLES])
def test_the_page_names_every_provider_and_role(name: str) -> None:
    assert name in PAGE.read_text()
