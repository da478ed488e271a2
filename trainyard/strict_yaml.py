"""Parses YAML. For stack files and job files, it rejects aliases and reports repeated keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MAX_CHARACTERS = 1_000_000
MAX_LEVELS = 50
"""Maximum depth of mappings and lists. The parser needs minutes for thousands of levels."""

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader of libyaml, if it is installed, is ten times as fast as the Python loader."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed text. `repeated` contains the path and line of each repeated key."""

    value: Any
    repeated: tuple[tuple[tuple[str, ...], int], ...]


class YamlError(Exception):
    """A text that is invalid YAML or exceeds a limit. Line numbers start at 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def load_own(text: str) -> Any:
    """Return the value of one of the project's own YAML files. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506  (both loaders are safe)


def load_strict(text: str) -> Document:
    """Parse a text that contains one document. Raises YamlError."""
    try:
        _check_limits(text)
        node = yaml.compose(text, Loader=_Loader)
        value = load_own(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(error.problem or "is not valid YAML", mark.line + 1 if mark else 1) from error
    except (yaml.YAMLError, ValueError, TypeError, IndexError) as error:
        # Errors about forbidden characters, invalid dates or empty numbers have no line number.
        raise YamlError("is not valid YAML: it contains characters or values that YAML forbids", 1) from error
    return Document(value=value, repeated=tuple(_repeated(node, ())))


def _check_limits(text: str) -> None:
    """Raise YamlError if a text is too long or too deeply nested, or has aliases, which could expand to gigabytes."""
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"is longer than {MAX_CHARACTERS:,} characters", 1)
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(f"the alias *{event.anchor} is not allowed: write the value again", line)
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MAX_LEVELS:
            raise YamlError(f"is nested deeper than {MAX_LEVELS} levels", line)


def _repeated(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*path, str(index)))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if name in keys:
                yield (*path, name), key.start_mark.line + 1
            keys.add(name)
            yield from _repeated(value, (*path, name))
