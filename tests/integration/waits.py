"""How long virtual machines wait for a physical processor of this computer."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL = 0.2


class QueueTimes:
    """Records how long the virtual processor of each machine waits for a physical processor of this computer.

    While the virtual processor waits, no program in the machine runs. Tests subtract this time from measured durations.
    Each machine must have one virtual processor.
    """

    def __init__(self, names: Iterable[str], pid: Callable[[str], int]) -> None:
        """`pid` returns the process id of a machine by its name, and raises AssertionError or OSError before the
        machine has started."""
        self._pid = pid
        self._samples: Mapping[str, list[tuple[float, float]]] = {name: [] for name in names}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self) -> Self:
        """Start recording."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End recording."""
        self._end.set()
        self._thread.join()

    def between(self, name: str, begin: float, end: float) -> float:
        """Return the seconds that the machine waited between two times of time.monotonic()."""
        return self._waited(name, end) - self._waited(name, begin)

    def _waited(self, name: str, when: float) -> float:
        """Return the machine's total waiting time until `when`, interpolated between two samples."""
        samples = self._samples[name]
        later = bisect_left(samples, (when,))
        if later in (0, len(samples)):
            return samples[later - 1][1] if later else 0.0
        (before, low), (after, high) = samples[later - 1], samples[later]
        return low + (high - low) * (when - before) / (after - before)

    def _record(self) -> None:
        while not self._end.wait(_INTERVAL):
            for name, samples in self._samples.items():
                try:
                    samples.append((time.monotonic(), _queued(self._pid(name))))
                except (AssertionError, OSError, ValueError):
                    continue


def _queued(pid: int) -> float:
    """Return how many seconds the busiest thread of a process has waited for a processor.

    Source: Documentation/scheduler/sched-stats.rst of Linux, "/proc/<pid>/schedstat": time spent on the cpu, and time
    spent waiting on a runqueue, in nanoseconds (read 2026-11-22).
    """
    threads = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    _, waited = max((int(run), int(wait)) for run, wait, _ in threads)
    return waited / 1e9
