"""Modules in this project and their imports, parsed from the source code without importing a module."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainyard", "components", "yard", "tools", "offline")


@cache
def modules() -> Mapping[str, Path]:
    """Return the full name and the file of every module outside the tests."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {_name(path): path for path in files}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(modules()[module].read_text())))


@cache
def imports(module: str) -> frozenset[str]:
    """Return the names of the modules that a module imports, also inside functions and under TYPE_CHECKING.

    `from a import b` gives `a.b` if `a.b` is a module in this project, and `a` otherwise.
    """
    found: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source(module, node)
            names = (f"{source}.{alias.name}" for alias in node.names)
            found.update(name if name in modules() else source for name in names)
    return frozenset(found)


def _source(module: str, node: ast.ImportFrom) -> str:
    """Return the full name of the module in an import statement, which may be relative."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    is_package = modules()[module].name == "__init__.py"
    parents = parts[: len(parts) - node.level + is_package]
    return ".".join((*parents, *filter(None, [node.module])))


def reachable(module: str, without: str = "") -> set[str]:
    """Return the modules in this project that a module imports, directly or indirectly, but not through `without`."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = (imports(waiting.pop()) & modules().keys()) - found - {without}
        found |= new
        waiting.extend(new)
    return found


def folder(module: str) -> str:
    return ".".join(modules()[module].relative_to(ROOT).parent.parts)


def package(module: str) -> str:
    return module.partition(".")[0]
