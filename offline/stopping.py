"""A request to stop all running operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event


class Stopped(Exception):
    """The operation stopped because the update was cancelled."""

    def __init__(self) -> None:
        super().__init__("cancelled")


class Stop:
    """A stop request, which is made at most once and cannot be withdrawn.

    with stop.calling(process.terminate):
        process.wait()
    """

    def __init__(self) -> None:
        self._requested = Event()
        self._changed = Condition()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Whether the request has been made."""
        return self._requested.is_set()

    def request(self) -> None:
        """Make the request, and call the registered callbacks in reverse order."""
        with self._changed:
            self._requested.set()
            callbacks = list(reversed(self._callbacks))
        for callback in callbacks:
            callback()

    def finish(self, seconds: float) -> None:
        """Make the request, and wait at most `seconds` until all operations have ended."""
        self.request()
        with self._changed:
            self._changed.wait_for(lambda: not self._callbacks, seconds)

    def wait(self, seconds: float) -> None:
        """Sleep. Raises Stopped as soon as the request is made."""
        if self._requested.wait(seconds):
            raise Stopped

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` if the request is made inside the block. Raises Stopped if the request was made earlier."""
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
