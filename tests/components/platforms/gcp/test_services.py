"""Tests for the APIs of all declared resources, and for the documented APIs and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.platforms.gcp.facts import FACTS, ROLES, SERVICES, enable_command, required_services
from tests.components.platforms.recording import Build

PAGE = Path(__file__).parents[4] / "docs" / "platforms" / "gcp.md"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("gcp-a2", {}),
    ("gcp-a2", {"nodes__gpu__placement": "compact", "storage__shared": {"kind": "head_nfs", "size_gib": 1024}}),
    ("gcp-a3-mega", {}),
]


def types(build: Build) -> set[str]:
    """Return the Pulumi types of the resources in all variants."""
    made = {kind for stack, edits in VARIANTS for kind, _, _ in build(stack, **edits).resources}
    return {kind for kind in made if kind.startswith("gcp:")}


def test_every_declared_type_has_an_api(build: Build) -> None:
    modules = {kind.split(":")[1].partition("/")[0] for kind in types(build)}
    assert modules == set(SERVICES)


def test_every_billed_type_is_declared(build: Build) -> None:
    assert set(FACTS.billed) <= types(build)
    assert FACTS.storage_types | FACTS.gateway_types <= set(FACTS.billed)


def test_the_page_has_the_command_for_all_apis() -> None:
    assert enable_command("PROJECT", required_services()) in PAGE.read_text()


@pytest.mark.parametrize("role", ROLES)
def test_the_page_names_every_role(role: str) -> None:
    assert f"`{role}`" in PAGE.read_text()
