"""Interactive sessions on nodes: the parts that do not depend on the scheduler."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

_FABRIC = "/etc/trainyard/fabric.env"
"""File on each node with NCCL's settings for the node's fabric."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """An interactive session. The shell of `host` (None: the head) runs `line`.

    `job_name` identifies the session's job in the scheduler. It is empty if there is no job. `node` is the node on
    which the session runs, or None if the scheduler chooses the node later.
    """

    host: str | None
    line: str
    job_name: str = ""
    node: str | None = None


def shell_line(command: str | None, first: str = "") -> str:
    """Return a shell command that sets NCCL's variables and runs `command`, or a login shell if it is None.

    `first` is a shell line that runs before them.
    """
    program = "exec bash -l" if command is None else command
    lines = [first, f"set -a; [ ! -r {_FABRIC} ] || . {_FABRIC}; set +a", program]
    return f"bash -c {shlex.quote('; '.join(line for line in lines if line))}"
