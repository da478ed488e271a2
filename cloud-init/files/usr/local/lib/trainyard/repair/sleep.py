"""A cluster that stops itself: first its workers, and then the head.

The cluster stops after a time without SSH connections to the head and without jobs, or when an admin requests it with
`yard sleep`. A running job prevents both. `yard wake` starts the head's machine. Slurm's queue and accounting are on
the head's disk, and slurmctld knows that the workers are off, so it starts them only for jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from health.slurm import SlurmNode

from repair.partitions import write_atomically
from repair.power import BUSY, OFF, ON, PowerError, Reconciler, wish

_STOP_SECONDS = 600.0
"""The time after which the workers must be off, and the time after which the head must be off."""
_ESTABLISHED = "01"
"""TCP_ESTABLISHED in /proc/net/tcp (include/net/tcp_states.h of Linux 6.12, read 2026-11-27)."""
_SSH_PORT = 22
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def connections(tables: tuple[Path, ...] = _TABLES) -> int:
    """Return the number of open SSH connections to this machine."""
    found = 0
    # Without IPv6, the second table does not exist.
    for table in (table for table in tables if table.exists()):
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            found += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == _SSH_PORT
    return found


@dataclass(frozen=True)
class SleepSettings:
    """The head's name, and the time in seconds after which an idle cluster stops."""

    head: str
    idle_seconds: float


@dataclass
class Sleep:
    """Stops the cluster. `now` is a monotonic time, and `wall` is in seconds since 1970."""

    settings: SleepSettings
    path: Path
    """The file of SLEEP_REQUEST."""
    queue: Callable[..., str | None]
    """Runs squeue, and returns None if it failed."""
    control: Callable[..., str | None]
    """Runs scontrol, and returns None if it failed."""
    reconciler: Reconciler
    connections: Callable[[], int] = connections
    idle_since: float | None = None
    is_closing: bool = False
    """Whether no job may start any more, and all machines of workers stop."""
    closing_since: float = 0.0
    """The time at which the partitions were closed."""
    stopping_since: float | None = None
    """The time of the order to stop the head, or None if there was none."""
    stopped: set[str] = field(default_factory=set)
    """Machines of drained nodes that were stopped. Slurm does not power these nodes down, so they stay drained."""

    def __post_init__(self) -> None:
        # The cluster has been started again, or this service has been restarted.
        self.path.unlink(missing_ok=True)

    def run_once(self, nodes: Mapping[str, SlurmNode], now: float, wall: float, gated: bool) -> None:
        """Decide whether the cluster stops, and stop the head when all other machines are off.

        `nodes` contains Slurm's nodes by name. While `gated` is set, `pulumi up` tests the nodes.
        """
        was_closing, self.is_closing = self.is_closing, self._must_close(nodes, now, wall, gated)
        if not self.is_closing:
            self.stopped.clear()
            return
        if not was_closing:
            self.closing_since = now
            return
        if self.stopping_since is not None:
            return
        try:
            self._stop(nodes, now)
        except PowerError as error:
            self._refuse(str(error))

    def _must_close(self, nodes: Mapping[str, SlurmNode], now: float, wall: float, gated: bool) -> bool:
        if self.stopping_since is not None:
            if now - self.stopping_since < _STOP_SECONDS:
                return True
            self._refuse(f"{self.settings.head} did not stop in {_STOP_SECONDS:.0f} s")
        at = self._requested()
        is_busy = any(node.flags & BUSY for node in nodes.values())
        if is_busy or gated:
            self.idle_since = None
            if at is not None and wall >= at:
                self._refuse("`pulumi up` is testing the nodes" if gated else "a job is running")
            return False
        return self._is_idle(now) if at is None else wall >= at

    def _requested(self) -> float | None:
        try:
            return float(json.loads(self.path.read_text())["at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _is_idle(self, now: float) -> bool:
        if self.connections():
            self.idle_since = None
            return False
        if self.idle_since is None:
            self.idle_since = now
        if now - self.idle_since < self.settings.idle_seconds:
            return False
        # Without other options, squeue lists the jobs that run or wait.
        listed = self.queue("-h", "-a", "-o", "%A")
        if listed is None or listed.strip():
            self.idle_since = None
            return False
        return True

    def _stop(self, nodes: Mapping[str, SlurmNode], now: float) -> None:
        """Stop the machines of nodes that are drained or down, and the head's machine if all others are off."""
        for name, node in nodes.items():
            is_out = not node.flags.isdisjoint({"DOWN", "DRAIN"}) and wish(node) != OFF
            if self.reconciler.known.get(name) != ON or not is_out or name in self.stopped:
                continue
            # After a restart of slurmctld, the state of a node that does not respond is UNKNOWN, unless it was DOWN. A
            # node whose state is UNKNOWN cannot be resumed (Slurm 24.11.5, tried 2026-11-27).
            if self.control("update", f"nodename={name}", "state=down", f"reason={node.reason}") is None:
                continue
            self.stopped.add(name)
            self.reconciler.power.stop(name)
        rest = self.reconciler.not_off
        if not rest:
            # A person could have started a machine since the last look-up.
            found = self.reconciler.power.states(sorted(self.reconciler.names))
            rest = frozenset(name for name, state in found.items() if state != OFF)
        if not rest:
            self.stopping_since = now
            self.reconciler.power.stop(self.settings.head)
        elif now - self.closing_since > _STOP_SECONDS:
            self._refuse(f"these machines do not stop: {', '.join(sorted(rest))}")

    def _refuse(self, why: str) -> None:
        """Record why the cluster does not stop, and wait again until it is idle."""
        self.stopping_since, self.idle_since, self.is_closing = None, None, False
        write_atomically(self.path, json.dumps({"refused": why}) + "\n")
