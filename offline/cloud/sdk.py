"""What the real SDK says about its resources, read from its own classes without importing them.

Importing one module of these SDKs takes seconds and 100 MB and more, and the engine waits for it on every preview. The
classes are generated and alike, so the text of the few that a stack uses is found and parsed alone: milliseconds.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    """One property: its name on the wire and in Python, its kind, and what its documentation restricts it to."""

    name: str
    python: str
    kind: Kind
    required: bool
    choices: tuple[str, ...] = ()


Shape = Mapping[str, Property]
"""Properties by their name on the wire."""


@dataclass(frozen=True)
class Described:
    """A resource type as the SDK describes it."""

    token: str
    inputs: Shape
    outputs: Shape
    folder: Path = field(repr=False)
    """Where the module's `_inputs.py`, `outputs.py` and `_enums.py` lie."""


class UnknownToken(Exception):
    """A type that the SDK does not have."""


class Sdk:
    """One Python SDK of Pulumi, by the name of its package ("pulumi_gcp")."""

    def __init__(self, package: str) -> None:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise UnknownToken(f"{package} is not installed. Fix: run `make setup`")
        self._root = Path(spec.origin).parent
        self.version = version(package)
        self._texts: dict[Path, str] = {}
        self._described: dict[str, Described] = {}
        # By folder, module and name: hundreds of resources of one type ask the same of it, and paths are slow to join.
        self._input_shapes: dict[tuple[Path, Named], Shape | None] = {}
        self._output_shapes: dict[tuple[Path, Named], Shape | None] = {}
        self._enums: dict[tuple[Path, Named], tuple[str, ...] | None] = {}

    @cached_property
    def _classes(self) -> dict[str, tuple[Path, str]]:
        """Folder and class by resource token, from the package's own registry."""
        found = _REGISTRY.search(self._text(self._root / "__init__.py"))
        modules = json.loads(found.group(1)) if found else []
        return {
            token: (self._root.joinpath(*module["fqn"].split(".")[1:]), name)
            for module in modules
            for token, name in module["classes"].items()
        }

    @property
    def tokens(self) -> list[str]:
        """Every resource type there is."""
        return list(self._classes)

    def describe(self, token: str) -> Described:
        """Return a resource type. Raises UnknownToken."""
        if token not in self._described:
            if token not in self._classes:
                raise UnknownToken(token)
            folder, name = self._classes[token]
            text = self._text(_module_of(folder, name))
            arguments = _ARGUMENTS.search(text)  # mostly NameArgs; another name where an input type has that one
            inputs = _shape(text, arguments.group(1)) if arguments else None
            if inputs is None:
                raise UnknownToken(f"{token}: its inputs cannot be read in {folder}")
            self._described[token] = Described(token, inputs, _outputs(text, name), folder)
        return self._described[token]

    def function_result(self, token: str) -> Shape | None:
        """Return what a function ("gcp:compute/getZones:getZones") gives; None for one that there is not."""
        _, module, name = token.split(":")
        file = self._root / module.partition("/")[0] / f"{snake(name)}.py"
        return _outputs(self._text(file), f"{name[0].upper()}{name[1:]}Result") if file.is_file() else None

    def input_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return an input class's properties; None for what is no such class."""
        key = (folder, kind)
        if key not in self._input_shapes:
            self._input_shapes[key] = self._class(self._folder(folder, kind) / "_inputs.py", kind.name)
        return self._input_shapes[key]

    def output_shape(self, folder: Path, kind: Named) -> Shape | None:
        """Return an output class's properties; None for what is no such class."""
        key = (folder, kind)
        if key not in self._output_shapes:
            home = self._root if kind.module == "_root_outputs" else folder
            self._output_shapes[key] = self._class(home / "outputs.py", kind.name)
        return self._output_shapes[key]

    def enum(self, folder: Path, kind: Named) -> tuple[str, ...] | None:
        """Return an enum's values; None for what is no enum."""
        key = (folder, kind)
        if key not in self._enums:
            file = self._folder(folder, kind) / "_enums.py"
            self._enums[key] = _enum(self._text(file), kind.name) if file.is_file() else None
        return self._enums[key]

    def _folder(self, folder: Path, kind: Named) -> Path:
        return self._root if kind.module.startswith("_root") else folder

    def _class(self, file: Path, name: str) -> Shape | None:
        return _shape(self._text(file), name) if file.is_file() else None

    def _text(self, file: Path) -> str:
        if file not in self._texts:
            self._texts[file] = file.read_text()
        return self._texts[file]


def snake(name: str) -> str:
    """Return a CamelCase name as Python spells it."""
    return _WORD_EDGE.sub("_", name).lower()


def _module_of(folder: Path, name: str) -> Path:
    """Find the file of a resource class. Its name follows from the class's, but for a few."""
    likely = folder / f"{snake(name)}.py"
    if likely.is_file():
        return likely
    mark = f"\nclass {name}(pulumi.CustomResource)"
    for file in folder.glob("*.py"):
        if mark in file.read_text():
            return file
    raise UnknownToken(f"{name}: {folder} has no such class")


def _body(text: str, name: str) -> ast.ClassDef | None:
    """Parse one class out of a module's text."""
    start = next((at for end in ":(" if (at := text.find(f"\nclass {name}{end}")) >= 0), -1)
    if start < 0:
        return None
    end = _NEXT_TOP_LEVEL.search(text, start + 2)
    tree = ast.parse(text[start : end.start() if end else len(text)])
    found = tree.body[0]
    return found if isinstance(found, ast.ClassDef) else None


def _shape(text: str, name: str) -> Shape | None:
    """Read a class: names and documentation from its getters, the required ones from its constructor."""
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
    """Return the property's name on the wire, as the SDK's getter gives it; "" for what is no getter."""
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


def _enum(text: str, name: str) -> tuple[str, ...] | None:
    body = _body(text, name)
    if body is None or not any(isinstance(base, ast.Name) and base.id == "Enum" for base in body.bases):
        return None
    values = [item.value for item in body.body if isinstance(item, ast.Assign)]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))
