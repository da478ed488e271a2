"""From pydantic's errors to this project's words: path, rule, fix."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from components.errors import Problem


def describe(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Return one Problem per error of a validation of `model`, without the values that were given."""
    return [_problem(details, sorted(model.model_fields)) for details in error.errors(include_url=False)]


def _path(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(file)"


def _problem(details: ErrorDetails, known: list[str]) -> Problem:
    path = _path(details["loc"])
    rule, fix = _words(details, path, known)
    return Problem(path=path, rule=rule, fix=fix)


def _words(details: ErrorDetails, path: str, known: list[str]) -> tuple[str, str]:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _TYPES:
        what, example = _TYPES[kind]
        return f"must be {what}", f"for example {example}"
    match kind:
        case "rule":
            words = context["rule"], context["fix"]
        case "extra_forbidden":
            near = get_close_matches(str(details["loc"][-1]), known, n=1)
            words = "is not a key of a job", f"write '{near[0]}'" if near else f"remove it; keys are {', '.join(known)}"
        case "missing":
            words = "is required", f"add a line `{path}: ...`"
        case "literal_error":
            words = f"must be {context['expected']}", "write one of them"
        case "string_pattern_mismatch":
            words = f"must match {context['pattern']}", _PATTERN_FIXES[path]
        case _:
            message = details["msg"].replace("Input should", "must")
            words = message[0].lower() + message[1:], "choose a value within the limit"
    return words


_PATTERN_FIXES = {
    "name": "use at most 40 lower-case letters, digits, '.', '_' and '-', for example 'gpt-small'",
    "memory_per_node": "write a number and M or G, for example '700M'",
}

_TYPES = {
    "int_type": ("a whole number", "2"),
    "int_from_float": ("a whole number", "2"),
    "int_parsing": ("a whole number", "2"),
    "string_type": ("text", "'text' in quotes"),
    "dict_type": ("a section of KEY: value lines", "`env: {OMP_NUM_THREADS: 1}`"),
    "tuple_type": ("a list", "`[--steps, 20]`"),
    "list_type": ("a list", "`[--steps, 20]`"),
    "string_too_short": ("some text", "'text' in quotes"),
}
