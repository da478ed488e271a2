"""What can go wrong on the way of a job, as types.

ClusterError
├── JobFileError    the job file breaks rules; a FileError, it carries every problem found
├── JobError        a job that is not there, or not in the state that the command needs
├── StackError      the stack's outputs cannot be read
├── RemoteError     a command on the cluster failed, or the cluster cannot be reached
├── SyncError       a directory that cannot be sent
└── BenchError      a benchmark that gave no figures, or a record that cannot be read
"""

from __future__ import annotations

from components.errors import ClusterError, FileError


class JobFileError(FileError):
    """A job file that may not be used."""

    spared = "submitted"


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
