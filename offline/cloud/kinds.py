"""Data types that represent the SDK's annotations."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeAlias

_SCALARS = {
    "str": "string",
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "Asset": "file",
    "Archive": "file",
    "Any": "anything",
    "object": "anything",
    "None": "anything",
}
_WRAPPERS = frozenset({"Input", "InputType", "Output", "Optional", "NotRequired", "Awaitable"})
_LISTS = frozenset({"Sequence", "List", "list"})
_MAPS = frozenset({"Mapping", "Dict", "dict"})


@dataclass(frozen=True)
class Scalar:
    """A string, boolean, integer, number, file (an asset or archive) or any JSON value."""

    name: str


ANYTHING = Scalar("anything")


@dataclass(frozen=True)
class ListOf:
    """A list. All items have the same kind."""

    item: Kind


@dataclass(frozen=True)
class MapOf:
    """A map with strings as keys. All values have the same kind."""

    item: Kind


@dataclass(frozen=True)
class Named:
    """An SDK class for an object or an enum. `module` is the name before the dot in the annotation, or ""."""

    name: str
    module: str = ""


@dataclass(frozen=True)
class OneOf:
    """A value of one of several kinds."""

    kinds: tuple[Kind, ...]


Kind: TypeAlias = "Scalar | ListOf | MapOf | Named | OneOf"


def kind_of(annotation: ast.expr | None) -> Kind:
    """Return the kind of an annotation. For an unknown annotation, checks accept any value."""
    match annotation:
        case ast.Constant(value=str(text)):
            return kind_of(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of, slice=inner):
            return _generic(_last_name(of), inner)
        case ast.Name() | ast.Attribute():
            return _plain(annotation)
    return ANYTHING


def is_optional(annotation: ast.expr | None) -> bool:
    """Return whether an annotation allows a missing value. The wrappers Input and Output are ignored."""
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
    return ANYTHING


def _union(kinds: list[Kind]) -> Kind:
    # The class NameDict is the dictionary form of the class Name.
    classes = [kind for kind in kinds if not (isinstance(kind, Named) and kind.name.endswith("Dict"))]
    unique = tuple(dict.fromkeys(classes))
    return unique[0] if len(unique) == 1 else OneOf(unique)


def _plain(annotation: ast.Name | ast.Attribute) -> Kind:
    name = _last_name(annotation)
    if name in _SCALARS:
        return Scalar(_SCALARS[name])
    return Named(name, _last_name(annotation.value) if isinstance(annotation, ast.Attribute) else "")


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
