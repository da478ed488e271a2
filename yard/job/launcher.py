"""Launchers: how the ranks of a job start. Each file in launchers/ defines the launcher with the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from trainyard.strict_yaml import load_own

_FOLDER = Path(__file__).parent / "launchers"


class Tasks(StrEnum):
    """Tasks that start the launcher: one per rank, one per node, or one on the first node."""

    RANK = "rank"
    NODE = "node"
    FIRST = "first"


class Source(StrEnum):
    """A job's program: a Python file that yard uploads, a Python file on the cluster, or shell commands."""

    WORKLOAD = "workload"
    SCRIPT = "script"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher."""

    title: str
    tasks: Tasks
    work: str
    """Last lines of the shell function `work`.

    {command} is the command that starts a rank, and {file} is the same command without `python3`. {min_nodes} is the
    minimum number of nodes, and {ssh_port} is the port of sshd in containers.
    """
    starts: frozenset[Source] = frozenset({Source.WORKLOAD, Source.SCRIPT})
    """Supported kinds of programs."""
    needs_slurm: bool = False
    over_ssh: bool = False
    """Whether ranks on other nodes are started over SSH. Slurm and the runner do not track such ranks."""
    runtimes: frozenset[str] = frozenset({"pyxis", "enroot", "docker"})
    """Supported container runtimes."""
    elastic: bool = False
    """Whether the job continues after it loses a node, if at least `min_nodes` nodes remain."""

    def lines(self, values: Mapping[str, str]) -> list[str]:
        """Return the lines of `work` with values filled in. Lines with {ssh_port} are omitted if it has no value."""
        lines = [line for line in self.work.splitlines() if "ssh_port" in values or "{ssh_port}" not in line]
        return [re.sub(r"\{(file|command|min_nodes|ssh_port)\}", lambda name: values[name[1]], line) for line in lines]


LAUNCHERS = tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def launcher(name: str) -> Launcher:
    """Return the launcher `name`, which must be in LAUNCHERS."""
    found = load_own((_FOLDER / f"{name}.yaml").read_text())
    sets = {key: frozenset(found[key]) for key in ("starts", "runtimes") if key in found}
    return Launcher(**{**found, **sets, "tasks": Tasks(found["tasks"])})
