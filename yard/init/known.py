"""The values that are known about a new stack, and the interface of a platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Section = dict[str, Any]
"""A section of a stack file."""

GROUP = "gpu"
"""Name of the node group in a new stack."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The values that are known about a new stack.

    `answers` contains texts by key, such as "region". `base` is the cluster section on which the new stack is based, or
    an empty section.
    """

    answers: Mapping[str, str]
    base: Section
    force: bool = False
    """Whether an existing stack file may be replaced."""

    def get(self, key: str) -> str:
        """Return the answer, or an empty text if there is none."""
        return self.answers.get(key, "")

    def with_answer(self, key: str, value: str) -> Known:
        """Return a copy with one more answer."""
        return replace(self, answers={**self.answers, key: value})

    def without(self, key: str) -> Known:
        """Return a copy without an answer."""
        return replace(self, answers={name: text for name, text in self.answers.items() if name != key})

    @property
    def group(self) -> Section:
        """The node group of `base`, or an empty section."""
        groups: Mapping[str, Section] = self.base.get("nodes", {})
        return next(iter(groups.values()), {})


@dataclass(frozen=True, kw_only=True)
class Starter:
    """The parts of `yard init` that differ between platforms."""

    keys: tuple[str, ...]
    """Keys of the questions (questions.py) for this platform, in order. `name` and `provider` come first."""
    section: Callable[[Known], Section]
    """Returns the cluster section. Values that are not known yet are replaced by valid ones, so that the section
    can be checked.
    """
    place: str = ""
    """Key of the region or zone in the `platform:` section, or empty if the platform has no regions."""
    places: Callable[[str], Sequence[str]] = lambda machine: ()
    """Returns the regions or zones that offer a machine type or, for an empty name, any machine with GPUs."""
    login: tuple[str, ...] = ()
    """Commands that log in to the cloud."""
    comments: Mapping[str, str] = field(default_factory=dict)
    """Comments for keys in the stack file, by path."""
