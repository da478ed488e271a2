"""The project's exceptions. Each message names the affected object, the rule and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class ClusterError(Exception):
    """An error with a message for the user. Any other exception is a defect."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A rule that a file violates, and the change that fixes the file."""

    path: str
    """The key in the file, such as "cluster.nodes.gpu.count"."""
    rule: str
    fix: str

    def text(self, *, is_note: bool = False) -> str:
        """Return `path: rule. Fix: fix.` The fix of a note is only advice, so it has no label."""
        fix = self.fix.rstrip(".")
        advice = f"{fix[:1].upper()}{fix[1:]}" if is_note else f"Fix: {fix}"
        return f"{self.path}: {self.rule.rstrip('.')}. {advice}."

    def line(self, file: str, *, is_note: bool = False) -> str:
        """Return `text` after the file's name: `file:path: rule. Fix: fix.`"""
        return f"{file}:{self.text(is_note=is_note)}"


class RuleError(ValueError):
    """Raised by stack file validators. pydantic requires a ValueError. `at` can name a key in the section."""

    def __init__(self, rule: str, fix: str, at: str = "") -> None:
        super().__init__(rule)
        self.rule, self.fix, self.at = rule, fix, at


class FileError(ClusterError):
    """An invalid file, with all of its problems."""

    spared: ClassVar[str]
    """Completes the sentence "nothing was ...", for example with "changed"."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem.line(file)}" for problem in self.problems)
        plural = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{len(self.problems)} {plural} in {file}; nothing was {self.spared}.\n{lines}")


class StackFileError(FileError):
    """An invalid stack file."""

    spared = "changed"


class CatalogError(ClusterError):
    """A file in components/catalog or cloud-init is wrong, which is a defect in the project."""


class PlatformError(ClusterError):
    """An operation on a machine, an image or a key failed or was refused."""


class ContractError(ClusterError):
    """Stack outputs that violate the contract (outputs.py)."""


class JobFileError(FileError):
    """An invalid job file."""

    spared = "submitted"


class EnvironmentFileError(JobFileError):
    """An unknown environment, or an invalid requirements file."""

    spared = "built"


class JobError(ClusterError):
    """A job that does not exist, or whose state does not allow the command."""


class StackError(ClusterError):
    """The stack cannot be used, or its outputs cannot be read."""


class RemoteError(ClusterError):
    """A command on the cluster failed, or a host cannot be reached."""


class UnreachableError(RemoteError):
    """The head does not answer, for example because its machine is off."""


class SyncError(ClusterError):
    """A directory that cannot be sent to the cluster."""


class BuildError(ClusterError):
    """An environment that cannot be built."""


class BenchError(ClusterError):
    """A benchmark that returned no figures, or an unreadable record."""
