"""Changes values in the text of a stack file, and keeps its comments."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from components.stackfile.read import CLUSTER_KEY

_WIDTH = 120

Path = tuple[str, ...]
"""Keys below the cluster section, such as ("platform", "region")."""
Values = Mapping[Path, Any]
"""New values by path. A key whose value is None is removed."""


def cluster_section(text: str) -> dict[str, Any]:
    """Return the cluster section of a valid stack file."""
    section: dict[str, Any] = yaml.safe_load(text)["config"][CLUSTER_KEY]
    return section


def without_other_keys(text: str) -> str:
    """Return a stack file that contains only the cluster section, without the comment at the beginning."""
    (start, _), (_, section) = _pairs(text, ())
    return text[start.start_mark.index : _end(section)] + "\n"


def with_values(text: str, values: Values, *, keep_comments: bool) -> str:
    """Return the text with other values.

    If `keep_comments` is false, the comments above the keys of a changed value are removed, because they describe the
    old value.
    """
    for path, value in values.items():
        if _value_at(cluster_section(text), path) != value:
            text = _with_value(text, path, value, keep_comments=keep_comments)
    return text


def _with_value(text: str, path: Path, value: Any, *, keep_comments: bool) -> str:
    pairs = _pairs(text, path)
    if len(pairs) < len(path) + 2:
        # Only `access` and `limits` can be missing.
        return f"{text}    {path[-1]}: {_flow(value)}\n"
    key, old = pairs[-1]
    column, start, end = key.start_mark.column, key.end_mark.index + 1, _end(old)
    if value is None:
        start, end, new = text.rindex("\n", 0, start), text.index("\n", end), ""
    elif column + len(key.value) + 2 + len(new := _flow(value)) <= _WIDTH:
        new = f" {new}"
    else:
        block = yaml.safe_dump(value, sort_keys=False, width=float("inf")).rstrip("\n")
        new = "\n" + textwrap.indent(block, " " * (column + 2))
    changed = text[:start] + new + text[end:]
    if keep_comments:
        return changed
    lines = changed.splitlines()
    for line in sorted({pair[0].start_mark.line for pair in pairs[2:]}, reverse=True):
        at = line
        while lines[at - 1].lstrip().startswith("#"):
            at -= 1
        del lines[at:line]
    return "\n".join(lines) + "\n"


def _pairs(text: str, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the key and the value at each step from the root to the path. Missing keys are omitted."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = []
    for name in ("config", CLUSTER_KEY, *path):
        found = next((pair for pair in node.value if pair[0].value == name), None)
        if found is None:
            break
        pairs.append(found)
        node = found[1]
    return pairs


def _end(node: yaml.Node) -> int:
    """Return the end of a value. The end mark of a block would include the comments that follow it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _value_at(section: dict[str, Any], path: Path) -> Any:
    value: Any = section
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style on one line."""
    return str(
        yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True)
    ).strip()[1:-1]
