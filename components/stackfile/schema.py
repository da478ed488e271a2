"""Generates the JSON Schema for stack files from the pydantic models. A valid file can still fail a check."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from components.catalog import machines
from components.platforms import PLATFORMS
from components.platforms.registry import platform_model
from components.spec.cluster import ClusterSpec
from components.spec.model import PlatformSpec
from components.stackfile.read import CLUSTER_KEY, KEYS, NAMESPACE

_DEFINITION = "#/$defs/"
_BY_PULUMI = {"description": "Written by Pulumi.", "type": "string"}


def stack_schema() -> dict[str, Any]:
    """Return the schema for stack files, in which `provider` selects the keys of the `platform:` section."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trainyard stack file",
        "description": "stacks/Pulumi.<stack>.yaml: one training cluster.",
        "type": "object",
        "required": ["config"],
        "properties": {
            "config": {
                "description": f"Pulumi's configuration for the stack; {CLUSTER_KEY} describes the cluster.",
                "type": "object",
                "required": [CLUSTER_KEY],
                "properties": {CLUSTER_KEY: {"$ref": f"{_DEFINITION}{ClusterSpec.__name__}"}},
                # Pulumi silently ignores unknown keys.
                "patternProperties": {
                    f"^(?!({'|'.join(KEYS)})$){NAMESPACE}:": False,
                    "^cluster$": False,
                },
            },
            "secretsprovider": _BY_PULUMI,
            "encryptedkey": _BY_PULUMI,
            "encryptionsalt": _BY_PULUMI,
        },
        "$defs": _definitions(),
    }


def _definitions() -> dict[str, Any]:
    specs = {provider: model for provider in PLATFORMS if (model := platform_model({"provider": provider}))}
    models: list[type[BaseModel]] = [ClusterSpec, *specs.values()]
    given, schema = models_json_schema([(model, "validation") for model in models], schema_generator=_Generator)
    definitions: dict[str, Any] = schema["$defs"]
    names = {provider: given[spec, "validation"]["$ref"].removeprefix(_DEFINITION) for provider, spec in specs.items()}
    del definitions[PlatformSpec.__name__]  # the base class of the platforms' models
    cluster = definitions[ClusterSpec.__name__]
    cluster["properties"]["platform"] = {
        "description": "Provides the machines. The keys depend on `provider`.",
        "type": "object",
        "required": ["provider"],
        "oneOf": [{"$ref": f"{_DEFINITION}{name}"} for name in names.values()],
        "discriminator": {"propertyName": "provider"},
    }
    cluster["allOf"] = list(map(_machines_of, PLATFORMS))
    return dict(sorted(definitions.items()))


def _machines_of(provider: str) -> dict[str, Any]:
    """Return a rule that restricts `machine` to the provider's machine types, so that editors suggest them."""
    machine = {"properties": {"machine": {"enum": sorted(machines(provider))}}}
    # Stack files for existing hosts can define further machine types under `machines`.
    others = {"required": ["machines"]}
    chosen = {"properties": {"provider": {"const": provider}}, "required": ["provider"], "not": others}
    return {
        "if": {"properties": {"platform": chosen}, "required": ["platform"]},
        "then": {"properties": {"head": machine, "nodes": {"additionalProperties": machine}}},
    }


class _Generator(GenerateJsonSchema):
    """Like pydantic's generator, but with field docstrings and without field titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _field_docs(schema["cls"]).items():
            field = made["properties"][name]
            rule = field.get("description")
            field["description"] = f"{text} It {rule}." if rule else text
        return made

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        made = super().dict_schema(schema)
        return made | {"additionalProperties": False} if "patternProperties" in made else made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's own fields, without the inherited ones."""
    [body] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(model))).body
    statements = body.body if isinstance(body, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(statements)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
