"""The exceptions for yard. yard/contract/errors.py contains the exceptions for the whole project."""

from __future__ import annotations

from yard.contract.errors import ClusterError, FileError


class JobFileError(FileError):
    """A job file that breaks rules."""

    spared = "submitted"


class EnvironmentFileError(JobFileError):
    """An environment that is unknown, or a requirements file that breaks rules."""

    spared = "built"


class JobError(ClusterError):
    """A job does not exist, or its state does not allow the command."""


class StackError(ClusterError):
    """The stack cannot be used, or its outputs cannot be read."""


class RemoteError(ClusterError):
    """A command on the cluster failed, or a host cannot be reached."""


class SyncError(ClusterError):
    """A directory that cannot be sent to the cluster."""


class BuildError(ClusterError):
    """An environment that cannot be built."""


class BenchError(ClusterError):
    """A benchmark that returned no figures, or a record that cannot be read."""
