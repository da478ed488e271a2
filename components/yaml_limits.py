"""How much a YAML text may be: deep nesting takes the parser minutes, aliases of aliases unfold to gigabytes."""

from __future__ import annotations

from typing import Any

import yaml

MOST_CHARACTERS = 1_000_000
MOST_LEVELS = 50
MOST_VALUES = 100_000
"""Values after unfolding every alias."""


class LimitPassed(ValueError):
    """A text with more than a stack file ever needs. `line` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def hold_limits(text: str, loader: type[Any]) -> None:
    """Raise LimitPassed for a text that must not be unfolded, and yaml.YAMLError for one that is none.

    It reads no further than the limit, since it is the reading of what follows that would take the time.
    """
    if len(text) > MOST_CHARACTERS:
        raise LimitPassed(f"is longer than {MOST_CHARACTERS:,} characters", 1)
    open_sizes, anchors = [0], {}
    open_anchors: list[str | None] = []
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append(1)
            open_anchors.append(event.anchor)
            if len(open_sizes) > MOST_LEVELS:
                raise LimitPassed(f"is nested deeper than {MOST_LEVELS} levels", line)
            continue
        size = 1
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = open_sizes.pop(), open_anchors.pop()
            anchors[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            # One that stands before its end holds itself; whoever composes the text says so.
            size = anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            anchors[event.anchor] = 1
        open_sizes[-1] += size
        if open_sizes[-1] > MOST_VALUES:
            raise LimitPassed(f"unfolds to more than {MOST_VALUES:,} values", line)
