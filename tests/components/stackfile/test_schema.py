"""The JSON Schema for stack files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from components.platforms import PLATFORMS
from components.stackfile.read import CLUSTER_KEY
from components.stackfile.schema import stack_schema
from tests.components.platforms.recording import stack_text
from tests.conftest import ROOT
from tests.stack_texts import STACKS
from yard.commands.cli import app

VALIDATOR = Draft202012Validator(stack_schema())


def schema_errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_committed_schema_is_current() -> None:
    printed = CliRunner().invoke(app, ["schema"]).stdout
    current = json.loads((ROOT / "stacks" / "schema.json").read_text()) == json.loads(printed)
    assert current, "schema.json is outdated; run: python -m yard schema >stacks/schema.json"
    Draft202012Validator.check_schema(stack_schema())


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_each_stack_is_valid_and_names_the_schema(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert schema_errors(text) == []


@pytest.mark.parametrize("stack", [file.stem.removeprefix("Pulumi.") for file in STACKS])
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
def test_refuses_invalid_stacks(stack: str, edits: dict[str, Any]) -> None:
    assert schema_errors(stack_text(stack, **edits)) != []


@pytest.mark.parametrize(
    "text", ["{}", "config: {}", "config: {cluster: {}}", "config: {'trainyard:clutser': {}}", "[]"]
)
def test_refuses_files_without_cluster(text: str) -> None:
    assert schema_errors(text) != []


def test_allows_other_keys_of_pulumi() -> None:
    others = "config:\n  gcp:project: mine\n  trainyard:end_jobs: 7,9\n"
    text = stack_text("gcp-a2").replace("config:\n", others) + "encryptionsalt: v1:x\n"
    assert schema_errors(text) == []


def test_each_key_has_a_description() -> None:
    definitions = stack_schema()["$defs"]
    undescribed = [
        f"{name}.{key}"
        for name, model in definitions.items()
        for key, field in model["properties"].items()
        if not field.keys() & {"description", "$ref", "const"}
    ]
    assert undescribed == [], "add a docstring or a description to the field"
    assert {f"{prefix}Spec" for prefix in PLATFORMS.values()} <= set(definitions)
    assert "PlatformSpec" not in definitions
    assert CLUSTER_KEY in stack_schema()["properties"]["config"]["required"]
