"""Tests for the removal of aliases that set only a former type of a resource."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest
from pulumi import resource

from components.platforms.azure.platform import without_former_types
from tests.components.platforms.azure.conftest import Build

OWN = pulumi.Alias(name="former-name", type_="azure-native:network:Former")
FORMER = pulumi.Alias(type_="azure-native:network/v20240101:Former")


def test_only_former_types_are_removed(loops: asyncio.AbstractEventLoop) -> None:
    options = pulumi.ResourceOptions(aliases=[FORMER, OWN, "urn:pulumi:s::p::t::n"], protect=True)
    left = without_former_types(_arguments(options))
    assert left is not None
    assert left.opts.aliases == [OWN, "urn:pulumi:s::p::t::n"]
    assert left.opts.protect is True
    assert options.aliases == [FORMER, OWN, "urn:pulumi:s::p::t::n"], "the options of the caller must not change"


def test_a_resource_without_aliases_is_unchanged(loops: asyncio.AbstractEventLoop) -> None:
    assert without_former_types(_arguments(pulumi.ResourceOptions())) is None


def test_platform_resources_have_no_former_types(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed: list[Any] = []
    monkeypatch.setattr(resource, "collapse_alias_to_urn", lambda alias, name, kind, parent: collapsed.append(alias))
    built = build("azure-a100", platform__boot_disk_gib=257)  # used by no other test, because results are cached
    assert len(built.resources) > 10
    # The remaining aliases contain the parent before the resource moved into a component.
    assert [alias for alias in collapsed if alias.type_ is not ... or alias.parent is ...] == []


def _arguments(options: pulumi.ResourceOptions) -> pulumi.ResourceTransformationArgs:
    made = object.__new__(pulumi.CustomResource)
    return pulumi.ResourceTransformationArgs(resource=made, type_="t", name="n", props={}, opts=options)
