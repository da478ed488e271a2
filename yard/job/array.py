"""Arrays: many jobs that differ only in the variable ARRAY_INDEX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.errors import Problem

INDEX = "ARRAY_INDEX"
"""Environment variable that contains the number of the job in its array."""
MOST_ELEMENTS = 100
"""Maximum number of elements. Each element is a separate job with its own submission and run folder."""
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?")
_LIMIT = re.compile(r"(?P<parts>[^%]+)(?:%(?P<at_once>[1-9]\d{0,5}))?")


@dataclass(frozen=True, kw_only=True)
class Array:
    """The numbers of an array's jobs. `at_once`: how many of them may run at the same time, or None for no limit."""

    indices: tuple[int, ...]
    at_once: int | None


def parse_array(text: str) -> Array | None:
    """Return an array in sbatch's notation, such as '0-9', '1,3,5', '0-20:5' or '0-9%2', or None for another format."""
    whole = _LIMIT.fullmatch(text)
    found = [_PART.fullmatch(part) for part in whole["parts"].split(",")] if whole else []
    indices: list[int] = []
    for part in found:
        if part is None or part[3] == "0":
            return None
        indices += range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    if whole is None or not indices or len(set(indices)) != len(indices):
        return None
    return Array(indices=tuple(indices), at_once=int(whole["at_once"]) if whole["at_once"] else None)


def array_rule(value: Any) -> Iterator[Problem]:
    """Check an array."""
    found = parse_array(value) if isinstance(value, str) else None
    if found is None:
        rule = "must be a list of numbers and ranges, with each number once"
        yield Problem(path="", rule=rule, fix="for example '0-9', '1,3,5' or '0-9%2' (two at the same time), in quotes")
    elif len(found.indices) > MOST_ELEMENTS:
        fix = "submit several arrays"
        yield Problem(path="", rule=f"must have at most {MOST_ELEMENTS} jobs, not {len(found.indices)}", fix=fix)
