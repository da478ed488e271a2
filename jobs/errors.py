"""What can go wrong on the way of a job, as types.

ClusterError
├── JobFileError    the job file breaks rules; carries every problem found
├── JobError        a job that is not there, or not in the state that the command needs
├── StackError      the stack's outputs cannot be read
├── RemoteError     a command on the cluster failed, or the cluster cannot be reached
├── SyncError       a directory that cannot be sent
└── BenchError      a benchmark that gave no figures, or a record that cannot be read
"""

from __future__ import annotations

from collections.abc import Sequence

from components.errors import ClusterError, Problem


class JobFileError(ClusterError):
    """A job file that may not be used; `problems` holds every reason, not just the first."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem.line(file)}" for problem in self.problems)
        plural = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{len(self.problems)} {plural} in {file}; nothing was submitted.\n{lines}")


class JobError(ClusterError):
    """A job that does not exist or is not in the state that a command needs."""


class StackError(ClusterError):
    """The outputs of the stack cannot be read."""


class RemoteError(ClusterError):
    """A command on the cluster failed, or no host answered."""


class SyncError(ClusterError):
    """A directory that cannot be sent to the cluster."""


class BenchError(ClusterError):
    """A benchmark that gave no figures, or a record that cannot be read."""
