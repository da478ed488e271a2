"""What can go wrong, as types.

ClusterError
├── FileError        a file breaks rules; carries every problem found
│   └── StackFileError   a stack file
├── CatalogError     a fact file of the project itself is wrong
├── PlatformError    a machine could not be made, started or reached
└── ContractError    stack outputs that this version cannot read

Every message names the object, the rule and the fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class ClusterError(Exception):
    """Any failure this project explains itself."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One broken rule of a stack file.

    `path` is the place in the file ("cluster.nodes.gpu.count"), `rule` what must hold, `fix` what to do.
    """

    path: str
    rule: str
    fix: str

    def line(self, file: str) -> str:
        """Return the problem as people read it: `file:path: rule. Fix: fix.`"""
        return f"{file}:{self.path}: {self.rule.rstrip('.')}. Fix: {self.fix.rstrip('.')}."


class RuleError(ValueError):
    """A rule of the stack file that a value breaks, found while its section is read. A ValueError: pydantic wants one.

    `at` names the key within the section that was being read, where that says more than the section.
    """

    def __init__(self, rule: str, fix: str, at: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.fix = fix
        self.at = at


class FileError(ClusterError):
    """A file that may not be used; `problems` holds every reason, not just the first."""

    spared: ClassVar[str]
    """What was not done, for the file is not right."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem.line(file)}" for problem in self.problems)
        plural = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{len(self.problems)} {plural} in {file}; nothing was {self.spared}.\n{lines}")


class StackFileError(FileError):
    """A stack file that may not be used."""

    spared = "changed"


class CatalogError(ClusterError):
    """A fact file under components/catalog/ contradicts itself: a defect of the project, not of the user."""


class PlatformError(ClusterError):
    """A machine could not be created, started, reached or removed."""


class ContractError(ClusterError):
    """Stack outputs that do not follow the contract this version knows."""
