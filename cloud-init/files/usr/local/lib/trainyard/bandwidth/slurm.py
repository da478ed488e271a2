"""Nodes in Slurm: lists idle and drained nodes, and drains and resumes nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

PREFIX = "TY:bandwidth: "
"""Prefix of the drain reason."""


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def idle() -> set[str]:
    """Return the nodes on which Slurm can start a job immediately."""
    return set(_output("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())


def drained() -> set[str]:
    """Return the nodes that the gate has drained."""
    rows = (line.split(" ", 1) for line in _output("sinfo", "-h", "-N", "-t", "drain", "-o", "%N %E").splitlines())
    return {row[0] for row in rows if len(row) > 1 and row[1].startswith(PREFIX.strip())}


def drain(name: str, reason: str) -> None:
    """Drain a node. Running jobs continue."""
    subprocess.run(["scontrol", "update", f"nodename={name}", "state=drain", f"reason={PREFIX}{reason}"], check=True)


def resume(names: Iterable[str]) -> None:
    """Return nodes to service."""
    for name in sorted(names):
        subprocess.run(["scontrol", "update", f"nodename={name}", "state=resume"], check=True)
