"""Renders a cluster section as a stack file with comments, and reads the comments of a stack file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from components.stackfile.read import CLUSTER_KEY
from yard.init.known import Section

_WIDTH = 120
_INDENT = 2
_FIRST = "# yaml-language-server: $schema=schema.json"


def render(section: Section, comments: Mapping[str, str], about: str) -> str:
    """Return the text of a stack file. `comments` contains comments by path, such as "nodes.gpu"."""
    lines = [_FIRST, *_comment(about, 0), "config:", f"{' ' * _INDENT}{CLUSTER_KEY}:"]
    for key, value in section.items():
        lines += _entry(key, value, (key,), comments, 2 * _INDENT)
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, path: tuple[str, ...], comments: Mapping[str, str], indent: int) -> Iterator[str]:
    """Yield the comment and the lines of a key.

    A value that fits on one line is written in flow style, except a mapping with comments on its keys and a top-level
    mapping that contains other mappings.
    """
    name = ".".join(path)
    yield from _comment(comments.get(name, ""), indent)
    line = f"{' ' * indent}{_scalar(key)}: {_flow(value)}"
    inside = any(other.startswith(f"{name}.") for other in comments)
    if isinstance(value, dict) and (inside or len(line) > _WIDTH or (len(path) == 1 and _nested(value))):
        yield f"{' ' * indent}{_scalar(key)}:"
        for inner, each in value.items():
            yield from _entry(inner, each, (*path, inner), comments, indent + _INDENT)
    elif isinstance(value, list) and len(line) > _WIDTH:
        yield f"{' ' * indent}{_scalar(key)}:"
        for item in value:
            yield from _item(item, indent + _INDENT)
    else:
        yield line


def _nested(value: Section) -> bool:
    return any(isinstance(inner, dict) for inner in value.values())


def _item(item: Any, indent: int) -> Iterator[str]:
    """Yield the lines of an item in a list with one item per line."""
    if not isinstance(item, dict):
        yield f"{' ' * indent}- {_flow(item)}"
        return
    for number, (key, value) in enumerate(item.items()):
        yield f"{' ' * indent}{'  ' if number else '- '}{_scalar(key)}: {_flow(value)}"


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style on one line."""
    if isinstance(value, str | int | float | bool) or value is None:
        return _scalar(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(_flow(inner) for inner in value) + "]"


def _scalar(value: Any) -> str:
    """Return a scalar. A string that YAML would otherwise read as a different value is quoted."""
    plain = (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )
    inside = f"[{plain}]"
    return plain if yaml.safe_load(inside) == [value] else json.dumps(value)


def _comment(text: str, indent: int) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - indent - 2):
        yield f"{' ' * indent}# {line}"


def comments_in(text: str) -> dict[str, str]:
    """Return the comment above each key of the cluster section in a stack file, by path."""
    lines, root = text.splitlines(), yaml.compose(text, Loader=yaml.SafeLoader)
    keys = dict(_key_lines(_child(_child(root, "config"), CLUSTER_KEY), ())) if root else {}
    found = {".".join(path): " ".join(reversed(list(_above(lines, line)))) for path, line in keys.items()}
    return {path: comment for path, comment in found.items() if comment}


def _above(lines: list[str], line: int) -> Iterator[str]:
    """Yield the lines of the comment above a line, in reverse order."""
    while line and lines[line - 1].lstrip().startswith("# "):
        line -= 1
        yield lines[line].lstrip().removeprefix("# ")


def _child(node: yaml.Node, key: str) -> yaml.Node:
    values: dict[str, yaml.Node] = {name.value: value for name, value in node.value}
    return values[key]


def _key_lines(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the line of each key outside of flow-style values."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return
    for key, value in node.value:
        yield (*path, key.value), key.start_mark.line
        yield from _key_lines(value, (*path, key.value))
