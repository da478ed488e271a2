"""Interactive sessions on nodes: the parts that do not depend on the scheduler."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

_FABRIC = "/etc/trainyard/fabric.env"
"""File on each node with NCCL's settings for the node's fabric."""
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, kw_only=True)
class Session:
    """An interactive session. The shell of `host` (None: the head) runs `line`.

    `job_name` identifies the session's job in the scheduler, or is empty if there is no job. `node` is the node on
    which the session runs, or None if the scheduler chooses the node later.
    """

    host: str | None
    line: str
    job_name: str = ""
    node: str | None = None


def shell_line(command: str | None, first: str = "") -> str:
    """Return a shell command that sets NCCL's variables and runs `command`, or a login shell if it is None.

    `first` is a shell line to run before these commands.
    """
    program = "exec bash -l" if command is None else command
    lines = [first, f"set -a; [ ! -r {_FABRIC} ] || . {_FABRIC}; set +a", program]
    return f"bash -c {shlex.quote('; '.join(line for line in lines if line))}"


def until_disconnected(line: str) -> str:
    """Return a shell command that runs `line` and stops it when the SSH session ends. It needs no terminal."""
    return f"exec python3 -c {shlex.quote(_SUPERVISOR.read_text())} bash -c {shlex.quote(line)}"
