"""Every check there is, with its words: read from the checks' own code, so that no list of them can go stale."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from components.checks import DRAFT_CHECKS, PLAN_CHECKS
from components.checks.base import Check, Level
from components.platforms import PLATFORMS, platform_checks

EVERYWHERE = "all"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One check. `rule` is what must hold, `fixes` what a finding asks for; {words} stand for what it was found in."""

    id: str
    level: Level
    platform: str
    rule: str
    fixes: tuple[str, ...]


def list_checks() -> tuple[Listed, ...]:
    """Return the checks of every stack, then those of each platform's stacks."""
    checks: tuple[Check[Any], ...] = (*DRAFT_CHECKS, *PLAN_CHECKS)
    common = [_listed(check, EVERYWHERE) for check in checks]
    return (*common, *(_listed(check, provider) for provider in PLATFORMS for check in platform_checks(provider)))


def _listed(check: Check[Any], platform: str) -> Listed:
    rule = (check.run.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
    return Listed(
        id=check.id, level=check.level, platform=platform, rule=" ".join(rule.split()), fixes=tuple(_fixes(check))
    )


def _fixes(check: Check[Any]) -> Iterator[str]:
    tree = ast.parse(dedent(inspect.getsource(check.run)))
    assigned = dict(pair for node in ast.walk(tree) if isinstance(node, ast.Assign) for pair in _named(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "fix":
            value = assigned.get(node.value.id, node.value) if isinstance(node.value, ast.Name) else node.value
            yield from _texts(value)


def _named(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield what each name is assigned, also side by side as in `rule, fix = ...`."""
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names = (name.id if isinstance(name, ast.Name) else "" for name in target.elts)
            yield from zip(names, node.value.elts, strict=True)


def _texts(value: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may be: a choice has two."""
    if isinstance(value, ast.IfExp):
        yield from _texts(value.body)
        yield from _texts(value.orelse)
    elif isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.JoinedStr):
        yield "".join(_part(part) for part in value.values)


def _part(part: ast.expr) -> str:
    if not isinstance(part, ast.FormattedValue):
        return str(part.value) if isinstance(part, ast.Constant) else "..."
    # Of `', '.join(known)`, `known` says it all.
    told = part.value.args[0] if isinstance(part.value, ast.Call) and part.value.args else part.value
    return f"{{{ast.unparse(told)}}}"
