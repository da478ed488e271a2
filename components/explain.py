"""From pydantic's errors to sentences for a stack file's author: path, rule, fix. Never shows a value it was given.

The words come from the fields themselves: `description` is the rule, `examples` (or the default) the good value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Le, MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from components.errors import Problem, RuleError

_LONGEST_KEY = 40
_KEY_MARK = "[key]"
"""How pydantic says that it is a mapping's key that is wrong, not the value under it."""

Loc = tuple[str | int, ...]


def explain(
    error: ValidationError, model: type[BaseModel], path: str, sections: Mapping[str, type[BaseModel]]
) -> list[Problem]:
    """Return one Problem for each error, in order. `sections` names the model of sections chosen by their content."""
    return [_problem(detail, model, path, sections) for detail in error.errors(include_url=False, include_input=False)]


def dotted(path: str, loc: Loc) -> str:
    """Return a place in the file as one printable line, never empty: `cluster.nodes.gpu.count`."""
    keys = (str(key) or "''" for key in loc if key != _KEY_MARK)
    shown = ["".join(c if c.isprintable() else "?" for c in key)[:_LONGEST_KEY] for key in keys]
    return ".".join([path, *shown] if path else shown)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that `word` was probably meant to be, if any is near."""
    found = get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if found and name.lower() == found[0]), None)


def _problem(
    detail: ErrorDetails, model: type[BaseModel], path: str, sections: Mapping[str, type[BaseModel]]
) -> Problem:
    loc = detail["loc"]
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, RuleError):
        return Problem(path=dotted(path, (*loc, cause.at) if cause.at else loc), rule=cause.rule, fix=cause.fix)
    owner, field = _locate(model, loc, sections)
    if detail["type"] == "extra_forbidden":
        rule, fix = _unknown_key(str(loc[-1]), owner)
    else:
        rule, fix = _WORDS.get(detail["type"], _other)(detail, field)
    return Problem(path=dotted(path, loc), rule=rule, fix=fix)


def _locate(
    model: type[BaseModel], loc: Loc, sections: Mapping[str, type[BaseModel]]
) -> tuple[type[BaseModel], FieldInfo]:
    """Return the model that holds the place and what that model says about it."""
    owner, field = model, FieldInfo(annotation=model)
    for depth, key in enumerate(loc):
        annotation = field.annotation
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


def _unknown_key(key: str, owner: type[BaseModel]) -> tuple[str, str]:
    refused: Mapping[str, tuple[str, str]] = getattr(owner, "refused_keys", {})
    if key in refused:
        return refused[key]
    known = list(owner.model_fields)
    meant = nearest(key, known)
    fix = f"write {meant} instead" if meant else f"remove it; the keys here are {', '.join(known)}"
    return "is not a known key", fix


def _missing(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "is missing", f"add `{detail['loc'][-1]}: {_example(field)}`"


def _number(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    low = next((rule.ge for rule in field.metadata if isinstance(rule, Ge)), None)
    high = next((rule.le for rule in field.metadata if isinstance(rule, Le)), None)
    bounds = "" if low is None or high is None else f" from {low} to {high}"
    return f"must be a whole number{bounds}", f"write it without quotes, for example {_example(field)}"


def _text(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "must be text", f"write something like {_example(field)}, in quotes where YAML would read it as another type"


def _described(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return field.description or "is not valid", f"write something like {_example(field)}"


def _choice(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return f"must be one of: {', '.join(map(_written, _choices(field.annotation)))}", f"write {_example(field)}"


def _choices(annotation: Any) -> list[Any]:
    """Return the values of a Literal, also of one that may be None."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _section(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "must be a section of keys and values", f"write something like {_example(field)}"


def _list(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "must be a list", f"write something like {_example(field)}"


def _too_few(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "needs at least one entry", f"add one, for example {_example(field)}"


def _too_many(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    most = next(rule.max_length for rule in field.metadata if isinstance(rule, MaxLen))
    return f"can hold at most {most} entries", "remove or join some of them"


def _other_key(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    return "the key must be text", "put the key in quotes"


def _other(detail: ErrorDetails, field: FieldInfo) -> tuple[str, str]:
    # An unforeseen kind of error: its text is pydantic's or a validator's own and holds no input.
    return detail["msg"].removeprefix("Value error, "), f"write something like {_example(field)}"


def _example(field: FieldInfo) -> str:
    if field.examples:
        value = field.examples[0]
    elif field.default is not PydanticUndefined:
        value = field.default
    else:
        choices = _choices(field.annotation)
        value = choices[0] if choices else "what the README's stack file reference shows"
    if isinstance(value, Mapping | list):
        text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=4096)
        return text.strip()
    return _written(value)


def _written(value: Any) -> str:
    """Return a value as a YAML file has it: with quotes if YAML would read the text as a number."""
    return f'"{value}"' if isinstance(value, str) and value.isdecimal() else str(value)


_WORDS: dict[str, Callable[[ErrorDetails, FieldInfo], tuple[str, str]]] = {
    "dict_type": _section,
    "greater_than_equal": _number,
    "int_type": _number,
    "invalid_key": _other_key,
    "ip_v4_address": _described,
    "ip_v4_network": _described,
    "less_than_equal": _number,
    "literal_error": _choice,
    "missing": _missing,
    "model_type": _section,
    "string_pattern_mismatch": _described,
    "string_type": _text,
    "too_long": _too_many,
    "too_short": _too_few,
    "tuple_type": _list,
}
