"""Which nodes a job gets: each holds one job at a time, and of those that wait the lowest number goes first.

Everything is a lock that the kernel frees when its holder ends, however it ends. All runners are on the head.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from .job import Host, Order
from .node import silent

_AGAIN_SECONDS = 0.5
_SILENT_SECONDS = 3.0
PROBE_SECONDS = 15
PATIENCE_SECONDS = 600.0
"""How long a job waits for nodes that do not answer."""


class Unreachable(Exception):
    """Too few nodes answer; the names of those that do not."""


class Claim:
    """Nodes held for a job until `release`."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self._files: dict[str, int] = {}

    def take(self, folder: Path, host: Host) -> bool:
        """Take a node if it is free."""
        file = _lock(folder / f"node-{host.name}")
        if file is None:
            return False
        self.hosts.append(host)
        self._files[host.name] = file
        return True

    def give_back(self, host: Host) -> None:
        """Let one node go."""
        self.hosts.remove(host)
        os.close(self._files.pop(host.name))

    def release(self) -> None:
        """Let all nodes go."""
        for host in list(self.hosts):
            self.give_back(host)


def claim(order: Order, number: int, folder: Path, avoid: Collection[str], cancelled: Callable[[], bool]) -> Claim:
    """Wait for enough free nodes that answer. `avoid` is heeded where the group has enough others.

    Returns with fewer nodes only when cancelled. Raises Unreachable when nodes stay silent for PATIENCE_SECONDS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ticket = folder / f"waits-{order.group}-{number:09}"
    waiting = _lock(ticket)
    deadline: float | None = None
    try:
        while not cancelled():
            found, unheard = _attempt(order, folder, ticket, avoid)
            if found is not None:
                return found
            if unheard:
                deadline = deadline or time.monotonic() + PATIENCE_SECONDS
                if time.monotonic() > deadline:
                    raise Unreachable(", ".join(unheard))
            else:
                deadline = None
            time.sleep(_SILENT_SECONDS if unheard else _AGAIN_SECONDS)
        return Claim()
    finally:
        ticket.unlink(missing_ok=True)
        if waiting is not None:
            os.close(waiting)


def _attempt(order: Order, folder: Path, ticket: Path, avoid: Collection[str]) -> tuple[Claim | None, list[str]]:
    if any(_is_held(other) for other in sorted(folder.glob(f"waits-{order.group}-*")) if other.name < ticket.name):
        return None, []
    wanted = [host for host in order.hosts if host.name not in avoid]
    held = Claim()
    free = [host for host in (wanted if len(wanted) >= order.nodes else order.hosts) if held.take(folder, host)]
    unheard: list[str] = []
    kept: list[Host] = []
    while len(kept) < order.nodes <= len(kept) + len(free):
        asked, free = free[: order.nodes - len(kept)], free[order.nodes - len(kept) :]
        quiet = silent(order.ssh, asked, PROBE_SECONDS)
        kept += [host for host in asked if host.name not in quiet]
        unheard += quiet
    for host in list(held.hosts):
        if len(kept) < order.nodes or host not in kept:
            held.give_back(host)
    return (held if held.hosts else None), unheard


def _lock(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _is_held(path: Path) -> bool:
    file = _lock(path)
    if file is None:
        return True
    os.close(file)
    return False
