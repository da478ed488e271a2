"""YAML as a stack file may use it: plain data, and a key that stands twice is a problem, not a silent overwrite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from components.yaml_limits import LimitPassed, hold_limits

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: ten times as fast, and the same data."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a text holds. `repeated` lists the places of keys that stand more than once, with the later one's line."""

    value: Any
    repeated: tuple[tuple[tuple[str, ...], int], ...]


class YamlError(ValueError):
    """A text that is not YAML, or holds more than plain data. `line` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def load_strict(text: str) -> Document:
    """Return the one document of a text. Raises YamlError."""
    try:
        hold_limits(text, _Loader)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            repeated = tuple(_repeated(node, (), frozenset())) if node is not None else ()
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(error.problem or "is not valid YAML", mark.line + 1 if mark else 1) from error
    except LimitPassed as error:
        raise YamlError(error.reason, error.line) from error
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # Characters that YAML forbids, a date that does not exist, nesting without end: none of them carries a line.
        raise YamlError("is not valid YAML: it holds characters or values that YAML cannot express", 1) from error
    return Document(value=value, repeated=repeated)


def _repeated(node: yaml.Node, path: tuple[str, ...], within: frozenset[int]) -> Iterator[tuple[tuple[str, ...], int]]:
    if id(node) in within:
        raise YamlError("an anchor holds itself", node.start_mark.line + 1)
    within |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*path, str(index)), within)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            place = (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
            if place[-1] in keys:
                yield place, key.start_mark.line + 1
            keys.add(place[-1])
            yield from _repeated(value, place, within)
