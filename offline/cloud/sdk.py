"""Descriptions of resource types, parsed from the official SDKs' source.

Importing one of the SDKs' modules takes seconds and more than 100 MB of memory. All classes
in the SDKs are generated in one format, so this module parses only the source of the classes that a stack uses.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
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
_REGISTRY = re.compile(r"resource_modules=\"\"\"(.*?)\"\"\"", re.DOTALL)
_ARGUMENTS = re.compile(r"get_resource_args_opts\((\w+),")
_NEXT_TOP_LEVEL = re.compile(r"^(?:class |def |@)", re.MULTILINE)
_CHOICES = re.compile(r"Possible values are: ((?:`[\w.-]+`(?:, (?:and |or )?)?)+)\.")
_WORD_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Scalar:
    """A string, boolean, integer, number, file (an asset or archive) or any JSON value."""

    name: str


ANYTHING = Scalar("anything")


@dataclass(frozen=True)
class ListOf:
    item: Kind


@dataclass(frozen=True)
class MapOf:
    item: Kind


@dataclass(frozen=True)
class Named:
    """An SDK class that describes an object or an enum. `module` is what precedes the dot in the annotation, or ""."""

    name: str
    module: str = ""


@dataclass(frozen=True)
class OneOf:
    kinds: tuple[Kind, ...]


Kind: TypeAlias = "Scalar | ListOf | MapOf | Named | OneOf"


def _kind(annotation: ast.expr | None) -> Kind:
    """Return an annotation's kind. An unknown annotation accepts any value."""
    match annotation:
        case ast.Constant(value=str(text)):
            return _kind(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _generic(_last_name(of), [_kind(part) for part in parts])
        case ast.Name() | ast.Attribute():
            name = _last_name(annotation)
            module = _last_name(annotation.value) if isinstance(annotation, ast.Attribute) else ""
            return Scalar(_SCALARS[name]) if name in _SCALARS else Named(name, module)
    return ANYTHING


def _generic(name: str, parts: list[Kind]) -> Kind:
    if name in _WRAPPERS:
        return parts[0]
    if name in ("Sequence", "List", "list"):
        return ListOf(parts[0])
    if name in ("Mapping", "Dict", "dict"):
        return MapOf(parts[-1])
    if name != "Union":
        return ANYTHING
    # NameDict is the dictionary form of the class Name.
    classes = [kind for kind in parts if not (isinstance(kind, Named) and kind.name.endswith("Dict"))]
    unique = tuple(dict.fromkeys(classes))
    return unique[0] if len(unique) == 1 else OneOf(unique)


def _is_optional(annotation: ast.expr | None) -> bool:
    """Return whether an annotation, possibly inside Input or Output, allows a missing value."""
    match annotation:
        case ast.Constant(value=str(text)):
            return _is_optional(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of, slice=inner):
            name = _last_name(of)
            return name == "Optional" or (name in _WRAPPERS and _is_optional(inner))
    return False


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


@dataclass(frozen=True)
class Property:
    """A property of a resource or of an object."""

    name: str
    """Name in the protocol."""
    python: str
    """Name in Python."""
    kind: Kind
    required: bool
    choices: tuple[str, ...] = ()
    """The possible values that the SDK's documentation lists."""


Shape = Mapping[str, Property]
"""Mapping from protocol name to property."""


@dataclass(frozen=True)
class Described:
    token: str
    inputs: Shape
    outputs: Shape
    folder: Path = field(repr=False)
    """The folder that contains `_inputs.py`, `outputs.py` and `_enums.py`."""


class UnknownToken(Exception):
    """The SDK does not contain the resource type."""


class Sdk:
    """One of Pulumi's Python SDKs. `package` is the name of its Python package, for example pulumi_gcp."""

    def __init__(self, package: str) -> None:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise UnknownToken(f"{package} is not installed. Fix: run `make setup`")
        self._root = Path(spec.origin).parent
        self.version = version(package)
        self._described: dict[str, Described] = {}

    @cached_property
    def _classes(self) -> dict[str, tuple[Path, str]]:
        """Mapping from resource type to folder and class name, from the package's registry."""
        found = _REGISTRY.search(_text(self._root / "__init__.py"))
        modules = json.loads(found.group(1)) if found else []
        return {
            token: (self._root.joinpath(*module["fqn"].split(".")[1:]), name)
            for module in modules
            for token, name in module["classes"].items()
        }

    @property
    def tokens(self) -> list[str]:
        """All resource types in the SDK."""
        return list(self._classes)

    def describe(self, token: str) -> Described:
        """Return a resource type's description. Raises UnknownToken."""
        if token not in self._described:
            if token not in self._classes:
                raise UnknownToken(token)
            folder, name = self._classes[token]
            text = _text(_module_of(folder, name))
            arguments = _ARGUMENTS.search(text)  # NameArgs, or another name if NameArgs is an input type
            inputs = _shape(text, arguments.group(1)) if arguments else None
            if inputs is None:
                raise UnknownToken(f"{token}: its inputs cannot be read in {folder}")
            self._described[token] = Described(token, inputs, _shape(text, name, resource=True) or {}, folder)
        return self._described[token]

    def input_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return an input class's properties, or None if `kind` is not an input class."""
        return _class(self._folder(folder, kind), "_inputs.py", kind.name)

    def output_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return an output class's properties, or None if `kind` is not an output class."""
        return _class(self._folder(folder, kind), "outputs.py", kind.name)

    def enum(self, folder: Path, kind: Named) -> tuple[str, ...] | None:
        """Return an enum's values, or None if `kind` is not an enum."""
        return _enum(self._folder(folder, kind), kind.name)

    def _folder(self, folder: Path, kind: Named) -> Path:
        return self._root if kind.module.startswith("_root") else folder


@cache
def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


@cache
def _class(folder: Path, module: str, name: str) -> Shape | None:
    return _shape(_text(folder / module), name)


def _module_of(folder: Path, name: str) -> Path:
    """Return the file that defines a resource class. The file's name is usually the class's name in snake_case."""
    likely = folder / f"{_WORD_EDGE.sub('_', name).lower()}.py"
    if likely.is_file():
        return likely
    mark = f"\nclass {name}(pulumi.CustomResource)"
    for file in folder.glob("*.py"):
        if mark in file.read_text():
            return file
    raise UnknownToken(f"{name}: {folder} has no such class")


def _body(text: str, name: str) -> ast.ClassDef | None:
    """Parse a class in a module's text. Return None if the module does not define it."""
    start = next((at for end in ":(" if (at := text.find(f"\nclass {name}{end}")) >= 0), -1)
    if start < 0:
        return None
    end = _NEXT_TOP_LEVEL.search(text, start + 2)
    tree = ast.parse(text[start : end.start() if end else len(text)])
    found = tree.body[0]
    return found if isinstance(found, ast.ClassDef) else None


def _shape(text: str, name: str, *, resource: bool = False) -> Shape | None:
    """Return the properties (getters) of a class, or None if the class does not exist.

    An input is required if the constructor's parameter has no default. A resource's output is required if the getter's
    annotation is not optional.
    """
    body = _body(text, name)
    if body is None:
        return None
    functions = [item for item in body.body if isinstance(item, ast.FunctionDef)]
    parameters = {
        argument.arg
        for function in functions
        if function.name == "__init__"
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if default is None
    }
    getters = [(wire, item) for item in functions if (wire := _wire_name(item))]
    return {
        wire: _property(wire, item, not _is_optional(item.returns) if resource else item.name in parameters)
        for wire, item in getters
    }


def _wire_name(function: ast.FunctionDef) -> str:
    """Return the property's name in the protocol if the function is a getter, or "" otherwise."""
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if isinstance(target, ast.Attribute) and target.attr == "getter":
            named = [item.value for item in call.keywords if item.arg == "name"] if call else []
            return str(named[0].value) if named and isinstance(named[0], ast.Constant) else function.name
    return ""


def _property(wire: str, getter: ast.FunctionDef, required: bool) -> Property:
    found = _CHOICES.search(" ".join((ast.get_docstring(getter) or "").split()))
    choices = tuple(re.findall(r"`([\w.-]+)`", found.group(1))) if found else ()
    return Property(wire, getter.name, _kind(getter.returns), required, choices)


@cache
def _enum(folder: Path, name: str) -> tuple[str, ...] | None:
    body = _body(_text(folder / "_enums.py"), name)
    if body is None or not any(isinstance(base, ast.Name) and base.id == "Enum" for base in body.bases):
        return None
    values = [item.value for item in body.body if isinstance(item, ast.Assign)]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))
