"""The service `trainyard-repair` on the head: a loop over the nodes in Slurm that uses only scontrol."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repair import gone, history, spares
from repair.nodes import Node, Site, parse_nodes, read_site

STATE = Path("/var/lib/trainyard")
GATE = "gate.lock"
"""trainyard-gate holds a lock on this file while it runs tasks on all nodes, so that spares are free and no node is set
down during a replacement."""
INTERVAL_SECONDS = 3.0
QUIET_SECONDS = 15.0
"""Interval between two listings of Slurm's nodes while every node answers and is usable, and no group has spares. On an
emulated head, a listing every three seconds used 8 % of a core (measured on 2026-11-23)."""
_SECONDS = 20


def scontrol(*arguments: str) -> str | None:
    """Run scontrol. Return its output, or None if it failed. The error is in the journal."""
    try:
        done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.stderr.write(f"scontrol {' '.join(arguments)}: {done.stdout}{done.stderr}\n")
        return None
    return done.stdout


@dataclass
class Service:
    """The service. Tests replace the functions."""

    site: Site
    state: Path = STATE
    control: Callable[..., str | None] = scontrol
    answering: Callable[[Mapping[str, str]], set[str]] = gone.answering
    watch: gone.Watch = field(init=False)
    changes: dict[str, tuple[history.Change, ...]] = field(init=False)
    listed: float | None = None
    """Time of the last listing after which no node needed attention, or None."""
    reservations_checked: bool = False

    def __post_init__(self) -> None:
        self.watch = gone.Watch(self.site.silent_seconds)
        self.changes = history.load(self.state / "repair.json")

    def run_once(self, now: float, wall: float) -> None:
        """Check all nodes once. `now`: time of a monotonic clock. `wall`: seconds since 1970."""
        answers = self.answering(self.site.addresses)
        self.watch.record(self.site.addresses, answers, now)
        if self._is_quiet(answers, now):
            return
        self.listed = None
        shown = self.control("-o", "show", "node")
        if shown is None:
            return
        nodes = {node.name: node for node in parse_nodes(shown) if node.name in self.site.addresses}
        if len(nodes) == len(self.site.addresses) and all(node.is_usable for node in nodes.values()):
            self.listed = now
        is_gated = self._is_gated()
        # While the gate runs, nodes that do not respond are not faulty, because `pulumi up` creates or replaces nodes.
        if not is_gated:
            self._record(nodes, wall)
            for change in (*gone.lost(nodes, self.watch), *gone.without_slurmd(nodes, answers, self.watch, now)):
                self.control(*change)
        self._hold_spares(nodes, release=is_gated)

    def _is_quiet(self, answers: set[str], now: float) -> bool:
        """Return whether Slurm's nodes need no listing now."""
        if self._has_spares() or answers != self.site.addresses.keys():
            return False
        return self.listed is not None and now - self.listed < QUIET_SECONDS

    def _has_spares(self) -> bool:
        return any(group.spares for group in self.site.groups)

    def _record(self, nodes: Mapping[str, Node], wall: float) -> None:
        found = history.record(self.changes, nodes.values(), wall)
        if found != self.changes:
            self.changes = found
            history.save(self.state / "repair.json", found)

    def _hold_spares(self, nodes: Mapping[str, Node], *, release: bool) -> None:
        # Without spares, only the reservations from an earlier configuration must be deleted.
        if self.reservations_checked and not self._has_spares():
            return
        listed = self.control("-o", "show", "reservation")
        if listed is None:
            return
        self.reservations_checked = True
        held = spares.parse_held(listed)
        for group in self.site.groups:
            names = self._names(held[group.name]) if group.name in held else None
            wanted = () if release else spares.choose(group, nodes, names or ())
            for change in spares.commands(group.name, wanted, names):
                self.control(*change)
        for group_name in held.keys() - {group.name for group in self.site.groups}:
            for change in spares.commands(group_name, (), ()):
                self.control(*change)

    def _names(self, node_list: str) -> set[str]:
        return set((self.control("show", "hostnames", node_list) or "").split())

    def _is_gated(self) -> bool:
        """Return whether trainyard-gate is running."""
        try:
            file = os.open(self.state / GATE, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False


def main() -> None:
    """Run until the process ends."""
    service = Service(read_site((STATE / "handover" / "repair.json").read_text()))
    while True:
        service.run_once(time.monotonic(), time.time())
        time.sleep(INTERVAL_SECONDS)
