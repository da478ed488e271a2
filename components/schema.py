"""JSON Schema of a stack file, for editors and for tools in other languages. Made of the spec's own models; pure.

It says less than the program checks: a file that the schema takes may still break a rule of components/checks.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from components.catalog import machines
from components.platforms import PLATFORMS, platform_model
from components.spec import ClusterSpec, PlatformSpec
from components.stackfile import CLUSTER_KEY, NAMESPACE

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITION = "#/$defs/"
_BY_PULUMI = {"description": "Pulumi writes it.", "type": "string"}


def stack_schema() -> dict[str, Any]:
    """Return the schema of the whole file; the platform's section is told apart by its provider."""
    return {
        "$schema": DIALECT,
        "title": "Trainyard stack file",
        "description": "stacks/Pulumi.<stack>.yaml: one training cluster.",
        "type": "object",
        "required": ["config"],
        "properties": {
            "config": {
                "description": f"Pulumi's configuration of the stack; {CLUSTER_KEY} describes the cluster.",
                "type": "object",
                "required": [CLUSTER_KEY],
                "properties": {CLUSTER_KEY: {"$ref": f"{_DEFINITION}{ClusterSpec.__name__}"}},
                # A misspelt key of ours would be ignored in silence.
                "patternProperties": {f"^{NAMESPACE}:(?!cluster$)": False, "^cluster$": False},
            },
            "secretsprovider": _BY_PULUMI,
            "encryptedkey": _BY_PULUMI,
            "encryptionsalt": _BY_PULUMI,
        },
        "$defs": _definitions(),
    }


def _definitions() -> dict[str, Any]:
    specs = {provider: _spec_of(provider) for provider in PLATFORMS}
    models: list[type[BaseModel]] = [ClusterSpec, *specs.values()]
    given, schema = models_json_schema([(model, "validation") for model in models], schema_generator=_Generator)
    text = json.dumps(schema["$defs"])
    names = {provider: f"{provider.capitalize()}Platform" for provider in PLATFORMS}
    for provider, spec in specs.items():
        # Every platform calls its model Spec, so pydantic makes names of their modules.
        made = given[spec, "validation"]["$ref"].removeprefix(_DEFINITION)
        text = text.replace(f'"{made}"', f'"{names[provider]}"').replace(f"{_DEFINITION}{made}", names[provider])
    definitions: dict[str, Any] = json.loads(text)
    del definitions[PlatformSpec.__name__]  # stands for all of them, and is none
    cluster = definitions[ClusterSpec.__name__]
    cluster["properties"]["platform"] = {
        "description": "Where the machines come from; the keys depend on the provider.",
        "type": "object",
        "required": ["provider"],
        "oneOf": [{"$ref": f"{_DEFINITION}{name}"} for name in names.values()],
        "discriminator": {"propertyName": "provider"},
    }
    cluster["allOf"] = list(map(_machines_of, PLATFORMS))
    return dict(sorted(definitions.items()))


def _spec_of(provider: str) -> type[PlatformSpec]:
    model = platform_model({"provider": provider})
    if model is None:
        raise KeyError(provider)
    return model


def _machines_of(provider: str) -> dict[str, Any]:
    """With that provider, only its machine types: an editor offers them by name."""
    machine = {"properties": {"machine": {"enum": sorted(machines(provider))}}}
    # Where a stack file brings machine types of its own, no list of names could be whole.
    own = {"required": ["machines"]}
    chosen = {"properties": {"provider": {"const": provider}}, "required": ["provider"], "not": own}
    return {
        "if": {"properties": {"platform": chosen}, "required": ["platform"]},
        "then": {"properties": {"head": machine, "nodes": {"additionalProperties": machine}}},
    }


class _Generator(GenerateJsonSchema):
    """pydantic's, with what the models say beside their fields, and without titles that repeat a key."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Describe the fields by the texts under them."""
        made = super().model_schema(schema)
        for name, text in _field_docs(schema["cls"]).items():
            field = made["properties"][name]
            rule = field.get("description")
            field["description"] = f"{text} It {rule}." if rule else text
        return made

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Refuse the keys that a rule for keys does not name."""
        made = super().dict_schema(schema)
        return made | {"additionalProperties": False} if "patternProperties" in made else made

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Set none."""
        return False


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the texts that stand under a model's own fields, by field."""
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
