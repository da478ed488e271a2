"""The JSON Schema of stack files: current, used by every stack, and about as strict as it can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from components.platforms import PLATFORMS
from components.schema import stack_schema
from components.stackfile import CLUSTER_KEY
from tests.platforms.recording import stack_text

STACKS = Path(__file__).parent.parent / "stacks"
FILES = sorted(STACKS.glob("Pulumi.*.yaml"))
REFERENCE = "# yaml-language-server: $schema=schema.json"
VALIDATOR = Draft202012Validator(stack_schema())


def complaints(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_the_committed_file_is_current() -> None:
    current = json.loads((STACKS / "schema.json").read_text()) == stack_schema()
    assert current, "components/schema.py says otherwise; run: yard schema >stacks/schema.json"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(stack_schema())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_stack_follows_and_names_it(file: Path) -> None:
    text = file.read_text()
    assert text.splitlines()[0] == REFERENCE
    assert complaints(text) == []


@pytest.mark.parametrize("stack", [file.stem.removeprefix("Pulumi.") for file in FILES])
@pytest.mark.parametrize(
    "edits",
    [
        {"nam": "x"},
        {"name": "Upper"},
        {"platform": {"provider": "azur"}},
        {"platform": {"provider": 1}},
        {"platform": {}},
        {"platform__regio": "eastus"},
        {"nodes": {}},
        {"nodes__gpu__count": 0},
        {"nodes__gpu__count": "2"},
        {"nodes__gpu__machine": "no-such-machine"},
        {"head__machine": "no-such-machine"},
        {"nodes__GPU": {"machine": "vm-gpu2", "count": 1}},
        {"storage__shared__kind": "floppy"},
        {"limits__max_usd_per_hour": -1},
    ],
    ids=lambda edits: next(iter(edits)),
)
def test_what_is_no_stack_is_refused(stack: str, edits: dict[str, Any]) -> None:
    assert complaints(stack_text(stack, **edits)) != []


@pytest.mark.parametrize(
    "text", ["{}", "config: {}", "config: {cluster: {}}", "config: {'trainyard:clutser': {}}", "[]"]
)
def test_what_has_no_cluster_is_refused(text: str) -> None:
    assert complaints(text) != []


def test_other_keys_of_pulumi_are_allowed() -> None:
    text = stack_text("gcp-a2").replace("config:\n", "config:\n  gcp:project: mine\n") + "encryptionsalt: v1:x\n"
    assert complaints(text) == []


def test_every_key_is_explained() -> None:
    definitions = stack_schema()["$defs"]
    bare = [
        f"{name}.{key}"
        for name, model in definitions.items()
        for key, field in model["properties"].items()
        if not field.keys() & {"description", "$ref", "const"}
    ]
    assert bare == [], "write a text under the field, or a description into it"
    assert {f"{provider.capitalize()}Platform" for provider in PLATFORMS} <= set(definitions)
    assert "PlatformSpec" not in definitions
    assert CLUSTER_KEY in stack_schema()["properties"]["config"]["required"]
