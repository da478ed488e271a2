"""Which of a resource's former names are left out."""

from __future__ import annotations

import asyncio

import pulumi
import pytest
from pulumi import resource

from components.platforms.azure.aliases import without_former_types
from tests.platforms.azure.conftest import Build

OWN = pulumi.Alias(name="former-name", type_="azure-native:network:Former")
FORMER = pulumi.Alias(type_="azure-native:network/v20240101:Former")


def test_only_former_types_are_left_out(loops: asyncio.AbstractEventLoop) -> None:
    options = pulumi.ResourceOptions(aliases=[FORMER, OWN, "urn:pulumi:s::p::t::n"], protect=True)
    left = without_former_types(_arguments(options))
    assert left is not None
    assert left.opts.aliases == [OWN, "urn:pulumi:s::p::t::n"]
    assert left.opts.protect is True
    assert options.aliases == [FORMER, OWN, "urn:pulumi:s::p::t::n"], "what was given stays as it is"


def test_a_resource_without_aliases_is_left_alone(loops: asyncio.AbstractEventLoop) -> None:
    assert without_former_types(_arguments(pulumi.ResourceOptions())) is None


def test_no_resource_of_the_platform_costs_an_alias(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed: list[str] = []
    monkeypatch.setattr(resource, "collapse_alias_to_urn", lambda alias, name, kind, parent: collapsed.append(kind))
    built = build("azure-a100", platform__boot_disk_gib=257)  # as no other test has it: it must be built here
    assert len(built.resources) > 10
    assert collapsed == []


def _arguments(options: pulumi.ResourceOptions) -> pulumi.ResourceTransformationArgs:
    made = object.__new__(pulumi.CustomResource)
    return pulumi.ResourceTransformationArgs(resource=made, type_="t", name="n", props={}, opts=options)
