"""Reserves nodes for a job. A node runs one job at a time, and waiting jobs get nodes in the order of their job
numbers.

A reservation is a file lock, which the kernel releases when the runner ends. All runners run on the head.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from .job import Host, JobRequest
from .node import unusable

_BUSY_SECONDS = 0.5
"""Time until the next attempt if too few nodes are free."""
_UNUSABLE_SECONDS = 3.0
"""Time until the next attempt if nodes are unusable."""
PATIENCE_SECONDS = 600.0
"""Maximum time that a job waits for unusable nodes."""


class TooFewNodes(Exception):
    """Too few nodes are usable. The message lists the unusable nodes with their reasons."""


class Claim:
    """Nodes that are reserved for a job until `release` is called."""

    def __init__(self) -> None:
        self._locks: dict[Host, int] = {}
        self.excluded: dict[str, str] = {}
        """Free nodes that are unusable, as a mapping from the name to the reason."""

    @property
    def hosts(self) -> list[Host]:
        """The reserved nodes."""
        return list(self._locks)

    def take(self, folder: Path, host: Host) -> bool:
        """Reserve a node. Returns whether the node was free."""
        lock = _lock(folder / f"node-{host.name}")
        if lock is not None:
            self._locks[host] = lock
        return lock is not None

    def keep(self, hosts: Collection[Host]) -> None:
        """Release all other nodes."""
        for host in self.hosts:
            if host not in hosts:
                os.close(self._locks.pop(host))

    def release(self) -> None:
        """Release all nodes."""
        self.keep([])


def claim(
    request: JobRequest, number: int, folder: Path, avoid: Collection[str], cancelled: Callable[[], bool]
) -> Claim:
    """Wait for free and usable nodes, and reserve them.

    `avoid`: names of nodes that are used only if the group has too few other nodes. Returns an empty claim if the job
    is cancelled. Raises TooFewNodes if nodes are unusable for PATIENCE_SECONDS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ticket = folder / f"waits-{request.group}-{number:09}"
    ticket_lock = _lock(ticket)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not cancelled():
            found = _attempt(request, folder, ticket, avoid)
            if found.hosts:
                return found
            if not found.excluded:
                deadline = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise TooFewNodes("; ".join(f"{name}: {reason}" for name, reason in found.excluded.items()))
            time.sleep(_UNUSABLE_SECONDS if found.excluded else _BUSY_SECONDS)
        return Claim()
    finally:
        ticket.unlink(missing_ok=True)
        if ticket_lock is not None:
            os.close(ticket_lock)


def _attempt(request: JobRequest, folder: Path, ticket: Path, avoid: Collection[str]) -> Claim:
    """Reserve as many nodes as the job needs, or none."""
    claimed = Claim()
    if any(_is_locked(other) for other in folder.glob(f"waits-{request.group}-*") if other.name < ticket.name):
        # Another job with a lower number is waiting.
        return claimed
    preferred = [host for host in request.hosts if host.name not in avoid]
    for host in preferred if len(preferred) >= request.nodes else request.hosts:
        claimed.take(folder, host)
    free = claimed.hosts
    answering: list[Host] = []
    while len(answering) < request.nodes <= len(answering) + len(free):
        missing = request.nodes - len(answering)
        probed, free = free[:missing], free[missing:]
        reasons = unusable(request.ssh, probed)
        answering += [host for host in probed if host.name not in reasons]
        claimed.excluded |= reasons
    claimed.keep(answering if len(answering) == request.nodes else [])
    return claimed


def _lock(path: Path) -> int | None:
    """Lock a file. Returns its file descriptor, or None if another process has locked it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _is_locked(path: Path) -> bool:
    file = _lock(path)
    if file is not None:
        os.close(file)
    return file is None
