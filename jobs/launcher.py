"""What a launcher is: how the ranks of a job come to life, as data and one pure function. Each is a file of launchers/.

A launcher's name is its file's, with '-' for '_'. To add one, add its file: the job file's key, the goldens and the
tests find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path

_FOLDER = Path(__file__).parent / "launchers"


class Tasks(StrEnum):
    """Where the launcher's command runs: once for each rank, once on each node, or once on the first node of all."""

    RANK = "rank"
    NODE = "node"
    FIRST = "first"


class Source(StrEnum):
    """What a job runs: a Python file that travels with it, a Python file on the cluster, or shell lines."""

    WORKLOAD = "workload"
    SCRIPT = "script"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank does, as words of bash. `python`: words[0] is a Python file; else words are a command."""

    python: bool
    words: tuple[str, ...]
    min_nodes: int
    ssh_port: int | None
    """Where the other nodes' containers listen; None: ssh leads to the hosts themselves."""

    @property
    def command(self) -> str:
        """The program as one command line."""
        return " ".join((*(("python3", "-u") if self.python else ()), *self.words))

    @property
    def file(self) -> str:
        """The Python file and its arguments."""
        return " ".join(self.words)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One row of the launch matrix. `lines` gives the end of the shell function `work`, whose last line is `exec`."""

    title: str
    tasks: Tasks
    lines: Callable[[Program], list[str]]
    starts: frozenset[Source] = frozenset({Source.WORKLOAD, Source.SCRIPT})
    schedulers: frozenset[str] = frozenset({"slurm", "none"})
    runtimes: frozenset[str] = frozenset({"pyxis", "enroot", "docker"})
    elastic: bool = False
    """Goes on without a node that is lost, as long as `min_nodes` are left."""


LAUNCHERS = tuple(sorted(path.stem.replace("_", "-") for path in _FOLDER.glob("[a-z]*.py")))


def launcher(name: str) -> Launcher:
    """Return the launcher of that name, which must be one of LAUNCHERS."""
    found: Launcher = import_module(f"jobs.launchers.{name.replace('-', '_')}").LAUNCHER
    return found
