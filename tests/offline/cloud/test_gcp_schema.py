"""Compare the rules for replacing resources in the simulated Google Cloud with the provider's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.cloud.rules import Rules
from offline.cloud.sdk import Kind, ListOf, Named, Sdk

SCHEMA: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("gcp_schema.yaml").read_text())
RULES = Rules("gcp")
SDK = Sdk("pulumi_gcp")
BEYOND: dict[str, dict[str, str]] = {
    "gcp:compute/instance:Instance": {
        "metadataStartupScript": "CustomizeDiff: ForceNewIf, unless the script is moved from or to metadata",
        "networkInterfaces.networkIp": "CustomizeDiff: forceNewIfNetworkIPNotUpdatable, unless the network changes too",
    },
    "gcp:compute/resourcePolicy:ResourcePolicy": {"name": "part of the id, and the schema has no update method for it"},
    "gcp:filestore/instance:Instance": {"name": "part of the id, and the schema has no update method for it"},
}
"""Paths that replace a resource for reasons other than ForceNew. CustomizeDiff: read 2026-11-22 in
terraform-provider-google-beta@93c65b2d60fe, services/compute/resource_compute_instance.go."""


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def pulumi_path(token: str, path: str) -> str:
    """Convert a path from the provider's schema to the SDK's path, for example network_interface.vlan to
    networkInterfaces.vlan."""
    described = SDK.describe(token)
    shape, names = described.inputs, list[str]()
    for part in map(camel, path.split(".")):
        found = [name for name in (part, f"{part}s", f"{part}es", f"{part[:-1]}ies") if name in shape]
        assert found, f"{token} has no {path}"
        names.append(found[0])
        kind = element(shape[found[0]].kind)
        shape = (SDK.input_shape(described.folder, kind) if isinstance(kind, Named) else None) or {}
    return ".".join(names)


def element(kind: Kind) -> Kind:
    return element(kind.item) if isinstance(kind, ListOf) else kind


@pytest.mark.parametrize("resource", SCHEMA)
def test_the_rules_have_all_paths_of_the_schema(resource: str) -> None:
    row = SCHEMA[resource]
    token, partly = row["token"], row.get("partly", [])
    whole = {pulumi_path(token, path) for path in row["forces"] if path not in partly}
    topmost = {path for path in whole if not any(path.startswith(f"{other}.") for other in whole)}
    expected = topmost | {f"{pulumi_path(token, path)}.#" for path in partly}
    assert RULES.of(token).replace == expected | BEYOND.get(token, {}).keys()


def test_all_types_with_rules_are_compared() -> None:
    rules = yaml.safe_load((Path(__file__).parents[3] / "offline/cloud/rules/gcp.yaml").read_text())
    assert set(rules["types"]) == {row["token"] for row in SCHEMA.values()}
    assert rules["replace"] == []
