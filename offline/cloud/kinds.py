"""The types that the SDK's annotations spell, as plain data."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeAlias

_SCALARS = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}
_WRAPPERS = frozenset({"Input", "InputType", "Output", "Optional", "NotRequired", "Awaitable"})
_LISTS = frozenset({"Sequence", "List", "list"})
_MAPS = frozenset({"Mapping", "Dict", "dict"})
_FILES = frozenset({"Asset", "Archive"})


@dataclass(frozen=True)
class Scalar:
    """A string, boolean, integer or number."""

    name: str


@dataclass(frozen=True)
class Anything:
    """Whatever JSON can say."""


@dataclass(frozen=True)
class File:
    """An asset or an archive."""


@dataclass(frozen=True)
class ListOf:
    """A list of one kind."""

    item: Kind


@dataclass(frozen=True)
class MapOf:
    """A map from strings to one kind."""

    item: Kind


@dataclass(frozen=True)
class Named:
    """A class of the SDK by name: an object's shape or an enum. `module` is the prefix it was written with."""

    name: str
    module: str = ""


@dataclass(frozen=True)
class OneOf:
    """Any of several kinds."""

    kinds: tuple[Kind, ...]


Kind: TypeAlias = "Scalar | Anything | File | ListOf | MapOf | Named | OneOf"


def kind_of(annotation: ast.expr | None) -> Kind:
    """Read an annotation. What cannot be understood may be anything: a check must never refuse out of ignorance."""
    match annotation:
        case ast.Constant(value=str(text)):
            return kind_of(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of, slice=inner):
            return _generic(_last_name(of), inner)
        case ast.Name() | ast.Attribute():
            return _plain(annotation)
    return Anything()


def is_optional(annotation: ast.expr | None) -> bool:
    """Tell whether an annotation, below its Input or Output, lets the value be absent."""
    match annotation:
        case ast.Constant(value=str(text)):
            return is_optional(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of, slice=inner):
            name = _last_name(of)
            return name == "Optional" or (name in _WRAPPERS and is_optional(inner))
    return False


def _generic(name: str, inner: ast.expr) -> Kind:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name in _WRAPPERS:
        return kind_of(parts[0])
    if name in _LISTS:
        return ListOf(kind_of(parts[0]))
    if name in _MAPS:
        return MapOf(kind_of(parts[-1]))
    if name == "Union":
        return _union([kind_of(part) for part in parts])
    return Anything()


def _union(kinds: list[Kind]) -> Kind:
    # The dictionary spelling of a class says nothing that the class does not.
    telling = [kind for kind in kinds if not (isinstance(kind, Named) and kind.name.endswith("Dict"))]
    unique = tuple(dict.fromkeys(telling))
    return unique[0] if len(unique) == 1 else OneOf(unique)


def _plain(annotation: ast.Name | ast.Attribute) -> Kind:
    name = _last_name(annotation)
    if name in _SCALARS:
        return Scalar(_SCALARS[name])
    if name in _FILES:
        return File()
    if name in ("Any", "object", "None"):
        return Anything()
    prefix = (
        annotation.value.id if isinstance(annotation, ast.Attribute) and isinstance(annotation.value, ast.Name) else ""
    )
    return Named(name, prefix)


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
