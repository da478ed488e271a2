"""The head's connections to a node: the ssh process of the node's agent, and short commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .job import Host
from .processes import AGENT_MARK

VERDICT = "/run/trainyard/health/verdict"
"""File with the severity and the reason of a node's worst fault, or an empty file. The daemon in
cloud-init/files/usr/local/lib/trainyard/health writes it."""
_PROBE_SECONDS = 15.0
_SWEEP_SECONDS = 8.0


@dataclass(frozen=True)
class Outcome:
    """Result of an attempt."""

    how: str
    """Kind of result: completed, failed, frozen, lost, faulty, time or cancelled."""
    code: int = 0
    node: str = ""
    """Name of the node that caused the failure, or ''."""
    message: str = ""


@dataclass
class Node:
    """A node during one attempt to run a job. `ssh` is connected to the node's agent."""

    host: Host
    ranks: list[tuple[int, int]]
    """Rank and local rank of each task that the agent starts."""
    ssh: subprocess.Popen[bytes]
    input: int
    """File descriptor of the agent's stdin."""
    output: int
    """File descriptor of the agent's stdout."""
    last_received: float = field(default_factory=time.monotonic)
    ended: set[int] = field(default_factory=set)
    rest: bytes = b""
    """Received bytes after the last newline."""
    said_bye: bool = False
    open: bool = True

    def send(self, line: str) -> None:
        """Send a line to the agent. A closed connection is ignored."""
        with suppress(OSError):
            os.write(self.input, line.encode() + b"\n")


def start_agent(ssh: Sequence[str], run_dir: Path, host: Host, ranks: list[tuple[int, int]], log: IO[bytes]) -> Node:
    """Start a node's agent over SSH. Its stderr is written to `log`."""
    folder = shlex.quote(str(run_dir))
    line = f"cd {folder} && exec env {AGENT_MARK}{folder} python3 -m runner agent {VERDICT}"
    process = subprocess.Popen([*ssh, host.name, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  (pipes; for the type checker)
    return Node(host, ranks, process, process.stdin.fileno(), process.stdout.fileno())


def sweep_nodes(ssh: Sequence[str], run_dir: Path, hosts: Sequence[Host]) -> list[str]:
    """Kill the job's processes on nodes whose agents have failed. Returns the names of nodes that do not respond."""
    folder = shlex.quote(str(run_dir))
    found = _run_on(ssh, hosts, f"cd {folder} && exec python3 -m runner sweep {folder}", _SWEEP_SECONDS)
    return [name for name, output in found.items() if output is None]


def unusable(ssh: Sequence[str], hosts: Sequence[Host]) -> dict[str, str]:
    """Return the nodes that cannot run a job, as a mapping from the name to the reason.

    A node is unusable if it does not respond over SSH within 15 seconds, or if a health check has found a fault.
    """
    found = _run_on(ssh, hosts, f"cat {VERDICT} 2>/dev/null || true", _PROBE_SECONDS)
    reasons = {
        name: "does not respond" if verdict is None else verdict.strip().partition(" ")[2]
        for name, verdict in found.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _run_on(ssh: Sequence[str], hosts: Sequence[Host], line: str, seconds: float) -> dict[str, str | None]:
    """Run a shell command on all given nodes.

    Returns its output by node, or None for nodes where the command failed or timed out.
    """
    processes = {
        host.name: subprocess.Popen(
            [*ssh, host.name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        for host in hosts
    }
    deadline = time.monotonic() + seconds
    found: dict[str, str | None] = {}
    for name, process in processes.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        found[name] = None if process.returncode else output
    return found
