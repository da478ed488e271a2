"""Tests for the services and roles that each cloud needs, and for their documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from components.platforms.azure import facts as azure
from components.platforms.gcp import facts as gcp
from components.platforms.registry import platform_facts
from tests.components.platforms.recording import record
from tests.components.platforms.test_contract import contract
from tests.conftest import ROOT

VARIANTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "azure": [
        ("azure-a100", {}),
        ("azure-a100", {"storage__shared": {"kind": "azure_files", "size_gib": 1024}}),
        ("azure-h100", {}),
    ],
    "gcp": [
        ("gcp-a2", {}),
        ("gcp-a2", {"nodes__gpu__placement": "compact", "storage__shared": {"kind": "head_nfs", "size_gib": 1024}}),
        ("gcp-a3-mega", {}),
    ],
}
"""Stacks and edits that together declare every type of resource on a cloud."""
SERVICES = {"azure": set(azure.SERVICES), "gcp": set(gcp.SERVICES)}


@pytest.mark.parametrize("provider", VARIANTS)
def test_every_declared_type_has_a_service(provider: str, loops: asyncio.AbstractEventLoop) -> None:
    part, facts = contract(provider), platform_facts(provider)
    made = {
        kind
        for stack, edits in VARIANTS[provider]
        for kind, _, _ in record(stack, edits, part.answer, part.tell).resources
        if kind.startswith((f"{provider}:", f"{provider}-native:"))
    }
    assert {kind.split(":")[1].partition("/")[0] for kind in made} == SERVICES[provider]
    assert set(facts.billed) <= made
    assert facts.storage_types | facts.gateway_types <= set(facts.billed)


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("azure", [*azure.SERVICES.values(), *azure.ROLES]),
        ("gcp", [gcp.enable_command("PROJECT", gcp.required_services()), *(f"`{role}`" for role in gcp.ROLES)]),
    ],
)
def test_the_page_names_every_service_and_role(provider: str, words: list[str]) -> None:
    page = (ROOT / "docs" / "platforms" / f"{provider}.md").read_text()
    assert [word for word in words if word not in page] == []
