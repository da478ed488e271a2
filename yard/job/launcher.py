"""Launchers, which start a job's ranks. Each file in launchers/ defines the launcher of the same name."""

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
    """Where the launcher is started: once per rank, once per node, or once on the first node."""

    RANK = "rank"
    NODE = "node"
    FIRST = "first"


class Source(StrEnum):
    """The kinds of programs: a Python file that yard uploads, a Python file on the cluster, and shell commands."""

    WORKLOAD = "workload"
    SCRIPT = "script"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher. `starts` lists the kinds of programs that it starts, and `runtimes` the container runtimes.

    `work` contains the last lines of the shell function `work`. In these lines, {command} is the command that starts a
    rank, {file} is the same command without `python3`, {min_nodes} is the minimum number of nodes, and {ssh_port} is
    the port of the sshd in containers.
    """

    title: str
    tasks: Tasks
    work: str
    starts: frozenset[Source] = frozenset({Source.WORKLOAD, Source.SCRIPT})
    needs_slurm: bool = False
    over_ssh: bool = False
    """Whether ranks on other nodes are started over SSH, so that neither Slurm nor the runner tracks them."""
    runtimes: frozenset[str] = frozenset({"pyxis", "enroot", "docker"})
    elastic: bool = False
    """Whether a job that loses nodes continues if at least `min_nodes` nodes remain."""

    def lines(self, values: Mapping[str, str]) -> list[str]:
        """Return the lines of `work`, filled in with `values`. Lines with {ssh_port} are omitted if it has no value."""
        lines = [line for line in self.work.splitlines() if "ssh_port" in values or "{ssh_port}" not in line]
        return [re.sub(r"\{(file|command|min_nodes|ssh_port)\}", lambda name: values[name[1]], line) for line in lines]


LAUNCHERS = tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def launcher(name: str) -> Launcher:
    """Return the launcher `name`, which must be in LAUNCHERS."""
    found = load_own((_FOLDER / f"{name}.yaml").read_text())
    sets = {key: frozenset(found[key]) for key in ("starts", "runtimes") if key in found}
    return Launcher(**{**found, **sets, "tasks": Tasks(found["tasks"])})
