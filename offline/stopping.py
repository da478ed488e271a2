"""A request to stop what is under way, shared by everything that may take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event


class Stopped(Exception):
    """The operation was ended because the deployment was cancelled."""

    def __init__(self) -> None:
        super().__init__("cancelled")


class Stop:
    """Asked once, never taken back.

    with stop.calling(process.terminate):
        process.wait()
    """

    def __init__(self) -> None:
        self._requested = Event()
        self._changed = Condition()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Whether everything should end."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask everything to end, and call what is registered, latest first."""
        with self._changed:
            self._requested.set()
            callbacks = list(reversed(self._callbacks))
        for callback in callbacks:
            callback()

    def finish(self, seconds: float) -> None:
        """Ask everything to end, and wait until it has, for `seconds` at most."""
        self.request()
        with self._changed:
            self._changed.wait_for(lambda: not self._callbacks, seconds)

    def wait(self, seconds: float) -> None:
        """Sleep. Raises Stopped as soon as a stop is requested."""
        if self._requested.wait(seconds):
            raise Stopped

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called when a stop is requested inside the block. Raises Stopped where it already was."""
        with self._changed:
            if self._requested.is_set():
                raise Stopped
            self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._changed:
                self._callbacks.remove(callback)
                self._changed.notify_all()
