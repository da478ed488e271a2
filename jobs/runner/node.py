"""A node of an attempt, as the head sees it: the ssh that its agent talks through, and what it said."""

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

_SWEEP_SECONDS = 8.0


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `how`: completed, failed, frozen, lost, time or cancelled; `node`: where it began."""

    how: str
    code: int = 0
    node: str = ""
    words: str = ""


@dataclass
class Node:
    """A node of the attempt."""

    host: Host
    ranks: list[tuple[int, int]]
    ssh: subprocess.Popen[bytes]
    heard: float = field(default_factory=time.monotonic)
    ended: set[int] = field(default_factory=set)
    rest: bytes = b""
    said_bye: bool = False
    open: bool = True

    @property
    def input(self) -> int:
        """The agent's stdin."""
        assert self.ssh.stdin is not None  # noqa: S101  (a pipe; tells the type checker)
        return self.ssh.stdin.fileno()

    @property
    def output(self) -> int:
        """The agent's stdout."""
        assert self.ssh.stdout is not None  # noqa: S101  (a pipe; tells the type checker)
        return self.ssh.stdout.fileno()

    def send(self, line: str) -> None:
        """Send a line to the agent, if it still listens."""
        with suppress(OSError):
            os.write(self.input, line.encode() + b"\n")


def start_agent(ssh: Sequence[str], run_dir: Path, host: Host, ranks: list[tuple[int, int]], log: IO[bytes]) -> Node:
    """Start the agent of a node. What it says on stderr goes into the log."""
    folder = shlex.quote(str(run_dir))
    line = f"cd {folder} && exec env {AGENT_MARK}{folder} python3 -m runner agent"
    process = subprocess.Popen([*ssh, host.name, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    return Node(host, ranks, process)


def sweep_nodes(ssh: Sequence[str], run_dir: Path, hosts: Sequence[Host]) -> list[str]:
    """End what the job has on these nodes, whose agents cannot. Returns the names of those that do not answer."""
    folder = shlex.quote(str(run_dir))
    line = f"cd {folder} && exec python3 -m runner sweep {folder}"
    sweeps = {host.name: subprocess.Popen([*ssh, host.name, line], stdin=subprocess.DEVNULL) for host in hosts}
    return wait_for(sweeps, _SWEEP_SECONDS)


def wait_for(processes: dict[str, subprocess.Popen[bytes]], seconds: float) -> list[str]:
    """Return the names of those that did not end well in time; none is left running."""
    deadline = time.monotonic() + seconds
    failed = []
    for name, process in processes.items():
        try:
            well = process.wait(max(0.1, deadline - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            well = False
        if not well:
            failed.append(name)
    return failed


def silent(ssh: Sequence[str], hosts: Sequence[Host], seconds: float) -> list[str]:
    """Return the names of the nodes that do not answer."""
    nowhere = subprocess.DEVNULL
    probes = {
        host.name: subprocess.Popen([*ssh, host.name, "true"], stdin=nowhere, stdout=nowhere, stderr=nowhere)
        for host in hosts
    }
    return wait_for(probes, seconds)
