"""Converts pydantic's errors to problems. Messages never contain values from the stack file.

A field's `description` is its rule. The example is from the field's `examples`, its default or its choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from trainyard.errors import Problem, RuleError

_LONGEST_KEY = 40
_KEY_MARK = "[key]"
"""pydantic appends this to the location of an invalid key in a mapping."""

Loc = tuple[str | int, ...]


def explain(
    error: ValidationError, model: type[BaseModel], path: str, sections: Mapping[str, type[BaseModel]]
) -> list[Problem]:
    """Return the errors as problems. `sections` maps a section to the model that its content selects."""
    details = error.errors(include_url=False)
    misspelt = {intended(detail["loc"], model, sections) for detail in details if detail["type"] == "extra_forbidden"}
    return [
        _problem(detail, model, path, sections)
        for detail in details
        if not (detail["type"] == "missing" and detail["loc"] in misspelt)
    ]


def intended(loc: Loc, model: type[BaseModel], sections: Mapping[str, type[BaseModel]]) -> Loc:
    """Return the location after replacing its unknown last key with the key that the message suggests, or with ""."""
    owner, _ = _locate(model, loc, sections)
    refused = loc[-1] in getattr(owner, "refused_keys", ())
    return (*loc[:-1], "" if refused else nearest(str(loc[-1]), list(owner.model_fields)) or "")


def dotted(path: str, loc: Loc) -> str:
    """Return the path to a location, for example `cluster.nodes.gpu.count`. Unprintable characters are replaced."""
    # A key of the stack file can have the same name as the mark.
    keys = (str(key) or "''" for key in (loc[:-1] if len(loc) > 1 and loc[-1] == _KEY_MARK else loc))
    shown = ["".join(c if c.isprintable() else "?" for c in key)[:_LONGEST_KEY] for key in keys]
    return ".".join([path, *shown] if path else shown)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that is most similar to `word`, or None if none is similar."""
    found = get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if found and name.lower() == found[0]), None)


def _problem(
    detail: ErrorDetails, model: type[BaseModel], path: str, sections: Mapping[str, type[BaseModel]]
) -> Problem:
    loc = detail["loc"]
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, RuleError):
        return Problem(path=dotted(path, (*loc, error.at) if error.at else loc), rule=error.rule, fix=error.fix)
    owner, field = _locate(model, loc, sections)
    if detail["type"] == "extra_forbidden":
        rule, fix = _unknown_key(str(loc[-1]), owner)
    else:
        values = _values(detail, field)
        rule, fix = (text.format_map(values) for text in _MESSAGES.get(detail["type"], _OTHER))
    return Problem(path=dotted(path, loc), rule=rule, fix=fix)


def _locate(
    model: type[BaseModel], loc: Loc, sections: Mapping[str, type[BaseModel]]
) -> tuple[type[BaseModel], FieldInfo]:
    """Return the model that contains the location, and the field at the location."""
    owner, field = model, FieldInfo(annotation=model)
    for depth, key in enumerate(loc):
        annotation = _without_none(field.annotation)
        if get_origin(annotation) is dict:
            key_type, value_type = get_args(annotation)
            field = FieldInfo.from_annotation(key_type if loc[depth + 1 :] == (_KEY_MARK,) else value_type)
        elif get_origin(annotation) is tuple:
            field = FieldInfo.from_annotation(get_args(annotation)[0])
        elif key != _KEY_MARK:
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                owner = annotation
            field = owner.model_fields.get(str(key), FieldInfo())
            if owner is model and key in sections:
                field = FieldInfo(annotation=sections[str(key)])
    return owner, field


def _without_none(annotation: Any) -> Any:
    """Return X for the annotation `X | None` of an optional section, and every other annotation unchanged."""
    others = [part for part in get_args(annotation) if part is not NoneType]
    return others[0] if get_origin(annotation) in {Union, UnionType} and len(others) == 1 else annotation


def _unknown_key(key: str, owner: type[BaseModel]) -> tuple[str, str]:
    refused: Mapping[str, tuple[str, str]] = getattr(owner, "refused_keys", {})
    if key in refused:
        return refused[key]
    known = list(owner.model_fields)
    similar = nearest(key, known)
    fix = f"write {similar} instead" if similar else f"remove it; the valid keys here are {', '.join(known)}"
    return "is not a known key", fix


def _values(detail: ErrorDetails, field: FieldInfo) -> dict[str, str]:
    choices = [_yaml_scalar(choice) for choice in _choices(field.annotation)]
    similar = nearest(str(detail["input"]), choices)
    return {
        "bounds": _bounds(field),
        "choice": f"write {similar}" if similar else f"use one of these values, for example {_example(field)}",
        "choices": ", ".join(choices),
        "description": field.description or "is not valid",
        "example": _example(field),
        "key": str(detail["loc"][-1]) if detail["loc"] else "",
        "message": detail["msg"].removeprefix("Value error, "),
        "most": str(detail.get("ctx", {}).get("max_length", "")),
        "number": "a number" if float in (field.annotation, *get_args(field.annotation)) else "a whole number",
    }


def _bounds(field: FieldInfo) -> str:
    """Return a number's range as text, or "" if the field does not have both limits."""
    limits = {type(limit): limit for limit in field.metadata}
    match limits.get(Ge) or limits.get(Gt), limits.get(Le):
        case Ge(ge=low), Le(le=high):
            return f" from {low} to {high}"
        case Gt(gt=low), Le(le=high):
            return f" greater than {low} and at most {high}"
    return ""


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _example(field: FieldInfo) -> str:
    if field.examples:
        value = field.examples[0]
    elif field.default is not PydanticUndefined:
        value = field.default
    else:
        choices = _choices(field.annotation)
        value = choices[0] if choices else "a value from docs/stack-file.md"
    if isinstance(value, Mapping | list):
        text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=4096)
        return text.strip()
    return _yaml_scalar(value)


def _yaml_scalar(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and value.isdecimal() else str(value)


_EXAMPLE = "write something like {example}"
_SECTION = ("must be a section of keys and values", _EXAMPLE)
_NUMBER = ("must be {number}{bounds}", "write it without quotes, for example {example}")
_RANGE = ("must be {number}{bounds}", "use a number in this range, for example {example}")
_DESCRIBED = ("{description}", _EXAMPLE)
_OTHER = ("{message}", _EXAMPLE)
"""For other types of errors, pydantic or a validator provides the message."""
_MESSAGES = {
    "bool_type": ("must be true or false", "write true or false"),
    "dict_type": _SECTION,
    "float_type": _NUMBER,
    "greater_than": _RANGE,
    "greater_than_equal": _RANGE,
    "int_type": _NUMBER,
    "invalid_key": ("the key must be text", "put the key in quotes"),
    "ip_v4_address": _DESCRIBED,
    "ip_v4_network": _DESCRIBED,
    "less_than_equal": _RANGE,
    "literal_error": ("must be one of: {choices}", "{choice}"),
    "missing": ("is missing", "add `{key}: {example}`"),
    "model_type": _SECTION,
    "string_pattern_mismatch": _DESCRIBED,
    "string_type": ("must be text", f"{_EXAMPLE}, quoted if YAML would parse it as another type"),
    "too_long": ("can have at most {most} entries", "remove or merge some of them"),
    "too_short": ("needs at least one entry", "add one, for example {example}"),
    "tuple_type": ("must be a list", _EXAMPLE),
}
"""Rule and fix for each pydantic error type. `_values` fills the placeholders."""
