"""What a check is: one rule that the schema cannot state, with its level and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from components.errors import Problem
from components.plan import ClusterPlan
from components.spec import ClusterSpec, GroupSpec, HeadSpec, NetworkSpec, PlatformSpec


class Level(StrEnum):
    """What follows from a finding: an error stops everything, the others are told and work goes on."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The well-formed sections of a stack file: None where a section is not, and only the groups that are."""

    platform: PlatformSpec | None = None
    network: NetworkSpec | None = None
    head: HeadSpec | None = None
    nodes: Mapping[str, GroupSpec] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A whole stack file and the plan made from it."""

    spec: ClusterSpec
    plan: ClusterPlan


_Subject = TypeVar("_Subject")


@dataclass(frozen=True, kw_only=True)
class Check(Generic[_Subject]):
    """A rule by a stable id. `run` yields each place where the subject breaks it."""

    id: str
    level: Level
    run: Callable[[_Subject], Iterable[Problem]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem and the check that found it."""

    check: str
    level: Level
    problem: Problem
