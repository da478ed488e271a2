"""Checks of stack files, and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any, Generic, TypeVar

from components.catalog import Machine
from components.plan.plan import ClusterPlan
from components.spec.cluster import GroupSpec, HeadSpec, NetworkSpec
from components.spec.explain import nearest
from components.spec.model import PlatformSpec
from trainyard.errors import Problem


class Level(StrEnum):
    """Severity of a finding. Errors make the stack file invalid, while warnings and notes are only printed."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The valid parts of a stack file. Invalid sections are None, and invalid groups are omitted."""

    platform: PlatformSpec | None = None
    machines: Mapping[str, str] = field(default_factory=dict)
    """Mapping from path to machine type. The mapping includes machine types in sections with other problems."""
    provider: str = ""
    """Name of the platform, or "" if it is unknown."""
    known_machines: Mapping[str, Machine] | None = None
    """The platform's machine types, or None if unknown. Even an invalid platform section can select the types."""
    network: NetworkSpec | None = None
    head: HeadSpec | None = None
    nodes: Mapping[str, GroupSpec] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Computer:
    """Functions that report free resources on this computer, where a local stack's VMs run."""

    free_memory: Callable[[ClusterPlan], int]
    """Returns the MiB of memory that the plan's VMs can use."""
    used_ports: Callable[[ClusterPlan, Sequence[int]], Sequence[int]]
    """Returns the ports on 127.0.0.1 that are used by programs other than the plan's VMs."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, and the computer that the checks examine."""

    plan: ClusterPlan
    computer: Computer | None = None
    """If None, this computer is not checked."""


_Subject = TypeVar("_Subject")


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A violation of a rule. `fix` is an index into `Check.fixes`, and `words` fills the placeholders in that fix."""

    path: str
    rule: str
    words: Mapping[str, object] = field(default_factory=dict)
    fix: int = 0


@dataclass(frozen=True, kw_only=True)
class Check(Generic[_Subject]):
    """A check. `rule` is the requirement, and `fixes` contain {placeholders}. Stack files silence a check by its ID."""

    id: str
    level: Level
    rule: str
    fixes: tuple[str, ...]
    find: Callable[[_Subject], Iterable[Broken]]

    def run(self, subject: _Subject) -> Iterator[Problem]:
        """Yield a problem for each violation."""
        for broken in self.find(subject):
            fix = self.fixes[broken.fix]
            for name, value in broken.words.items():
                fix = fix.replace(f"{{{name}}}", str(value))
            yield Problem(path=broken.path, rule=broken.rule, fix=fix)


def check(id: str, level: Level, *fixes: str) -> Callable[[Callable[[_Subject], Iterable[Broken]]], Check[_Subject]]:
    """Return a decorator that turns a function into a check. The rule is the first line of the function's docstring."""

    def decorate(find: Callable[[_Subject], Iterable[Broken]]) -> Check[_Subject]:
        rule = (find.__doc__ or "").partition("\n")[0]
        return Check(id=id, level=level, rule=rule, fixes=fixes, find=find)

    return decorate


def checks_in(*modules: ModuleType) -> tuple[Check[Any], ...]:
    """Return the checks that the modules define: first errors, then warnings, then notes."""
    found = [
        item
        for module in modules
        for item in vars(module).values()
        if isinstance(item, Check) and item.find.__module__ == module.__name__
    ]
    return tuple(sorted(found, key=lambda check: list(Level).index(check.level)))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem and the check that found it."""

    check: str
    level: Level
    problem: Problem


def run_checks(checks: Iterable[Check[_Subject]], subject: _Subject) -> Iterator[Finding]:
    for check in checks:
        for problem in check.run(subject):
            yield Finding(check=check.id, level=check.level, problem=problem)


def silence_problems(silence: Iterable[str], levels: Mapping[str, Level]) -> Iterator[Problem]:
    """Yield a problem for each ID that cannot be silenced. `levels` maps the IDs of all checks to their levels."""
    for index, check in enumerate(silence):
        path = f"cluster.silence.{index}"
        if check not in levels:
            ids = [known for known, level in levels.items() if level is not Level.ERROR]
            similar = nearest(check, ids)
            yield Problem(
                path=path,
                rule=f"no check for this stack has the ID {check}",
                fix=f"write {similar}" if similar else f"use one of {', '.join(ids)}, or remove it",
            )
        elif levels[check] is Level.ERROR:
            yield Problem(
                path=path,
                rule=f"{check} reports errors, but only warnings and notes can be silenced",
                fix="remove it, and fix the errors",
            )
