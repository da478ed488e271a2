"""Descriptions of resource types, parsed from the source of the official SDKs.

Importing a module of these SDKs takes seconds and uses more than 100 MB of memory. All classes are generated in the
same format, so this module parses only the text of the classes that a stack uses, which takes milliseconds.
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

from offline.cloud.kinds import Kind, Named, is_optional, kind_of

_REGISTRY = re.compile(r"resource_modules=\"\"\"(.*?)\"\"\"", re.DOTALL)
_ARGUMENTS = re.compile(r"get_resource_args_opts\((\w+),")
_NEXT_TOP_LEVEL = re.compile(r"^(?:class |def |@)", re.MULTILINE)
_CHOICES = re.compile(r"Possible values are: ((?:`[\w.-]+`(?:, (?:and |or )?)?)+)\.")
_WORD_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


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
    """The possible values listed in the SDK's documentation."""


Shape = Mapping[str, Property]
"""Properties by protocol name."""


@dataclass(frozen=True)
class Described:
    """A resource type in the SDK."""

    token: str
    inputs: Shape
    outputs: Shape
    folder: Path = field(repr=False)
    """Folder that contains the module's `_inputs.py`, `outputs.py` and `_enums.py`."""


class UnknownToken(Exception):
    """The SDK does not contain the type."""


class Sdk:
    """A Pulumi Python SDK. `package` is its package name, for example "pulumi_gcp"."""

    def __init__(self, package: str) -> None:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise UnknownToken(f"{package} is not installed. Fix: run `make setup`")
        self._root = Path(spec.origin).parent
        self.version = version(package)
        self._described: dict[str, Described] = {}

    @cached_property
    def _classes(self) -> dict[str, tuple[Path, str]]:
        """Folder and class name for each resource token, from the package's registry."""
        found = _REGISTRY.search(_text(self._root / "__init__.py"))
        modules = json.loads(found.group(1)) if found else []
        return {
            token: (self._root.joinpath(*module["fqn"].split(".")[1:]), name)
            for module in modules
            for token, name in module["classes"].items()
        }

    @property
    def tokens(self) -> list[str]:
        """All resource types."""
        return list(self._classes)

    def describe(self, token: str) -> Described:
        """Return a resource type. Raises UnknownToken."""
        if token not in self._described:
            if token not in self._classes:
                raise UnknownToken(token)
            folder, name = self._classes[token]
            text = _text(_module_of(folder, name))
            arguments = _ARGUMENTS.search(text)  # NameArgs, or another name if NameArgs is an input type
            inputs = _shape(text, arguments.group(1)) if arguments else None
            if inputs is None:
                raise UnknownToken(f"{token}: its inputs cannot be read in {folder}")
            self._described[token] = Described(token, inputs, _outputs(text, name), folder)
        return self._described[token]

    def function_result(self, token: str) -> Shape | None:
        """Return the result type of a function ("gcp:compute/getZones:getZones"), or None if it does not exist."""
        _, module, name = token.split(":")
        file = self._root / module.partition("/")[0] / f"{snake(name)}.py"
        return _outputs(_text(file), f"{name[0].upper()}{name[1:]}Result") if file.is_file() else None

    def input_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return the properties of an input class, or None if `kind` is not an input class."""
        return _class(self._folder(folder, kind), "_inputs.py", kind.name)

    def output_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return the properties of an output class, or None if `kind` is not an output class."""
        return _class(self._folder(folder, kind), "outputs.py", kind.name)

    def enum(self, folder: Path, kind: Named) -> tuple[str, ...] | None:
        """Return the values of an enum, or None if `kind` is not an enum."""
        return _enum(self._folder(folder, kind), kind.name)

    def _folder(self, folder: Path, kind: Named) -> Path:
        return self._root if kind.module.startswith("_root") else folder


@cache
def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


@cache
def _class(folder: Path, module: str, name: str) -> Shape | None:
    return _shape(_text(folder / module), name)


def snake(name: str) -> str:
    """Return a CamelCase name in snake_case."""
    return _WORD_EDGE.sub("_", name).lower()


def _module_of(folder: Path, name: str) -> Path:
    """Return the file of a resource class. For most classes, the file name is the class name in snake_case."""
    likely = folder / f"{snake(name)}.py"
    if likely.is_file():
        return likely
    mark = f"\nclass {name}(pulumi.CustomResource)"
    for file in folder.glob("*.py"):
        if mark in file.read_text():
            return file
    raise UnknownToken(f"{name}: {folder} has no such class")


def _body(text: str, name: str) -> ast.ClassDef | None:
    """Return the syntax tree of a class defined in a module's text."""
    start = next((at for end in ":(" if (at := text.find(f"\nclass {name}{end}")) >= 0), -1)
    if start < 0:
        return None
    end = _NEXT_TOP_LEVEL.search(text, start + 2)
    tree = ast.parse(text[start : end.start() if end else len(text)])
    found = tree.body[0]
    return found if isinstance(found, ast.ClassDef) else None


def _shape(text: str, name: str) -> Shape | None:
    """Return the properties of a class from its getters, or None if the class does not exist.

    A property is required if the constructor's parameter has no default.
    """
    body = _body(text, name)
    if body is None:
        return None
    required = _required(body)
    properties = [_property(item, item.name in required) for item in _getters(body)]
    return {found.name: found for found in properties}


def _outputs(text: str, name: str) -> Shape:
    body = _body(text, name)
    if body is None:
        return {}
    properties = [_property(item, not is_optional(item.returns)) for item in _getters(body)]
    return {found.name: found for found in properties}


def _required(body: ast.ClassDef) -> set[str]:
    for item in body.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
            return {argument.arg for argument, default in arguments if default is None}
    return set()


def _getters(body: ast.ClassDef) -> list[ast.FunctionDef]:
    return [item for item in body.body if isinstance(item, ast.FunctionDef) and _wire_name(item)]


def _wire_name(function: ast.FunctionDef) -> str:
    """Return the protocol name of a getter's property, or "" for any other function."""
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if isinstance(target, ast.Attribute) and target.attr == "getter":
            named = [item.value for item in call.keywords if item.arg == "name"] if call else []
            return str(named[0].value) if named and isinstance(named[0], ast.Constant) else function.name
    return ""


def _property(function: ast.FunctionDef, required: bool) -> Property:
    found = _CHOICES.search(" ".join((ast.get_docstring(function) or "").split()))
    choices = tuple(re.findall(r"`([\w.-]+)`", found.group(1))) if found else ()
    return Property(_wire_name(function), function.name, kind_of(function.returns), required, choices)


@cache
def _enum(folder: Path, name: str) -> tuple[str, ...] | None:
    body = _body(_text(folder / "_enums.py"), name)
    if body is None or not any(isinstance(base, ast.Name) and base.id == "Enum" for base in body.bases):
        return None
    values = [item.value for item in body.body if isinstance(item, ast.Assign)]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))
