"""Run commands on other machines in one asyncio event loop in a thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from offline.command.capture import Capture
from offline.command.connection import Connection, connection
from offline.command.run import Run
from offline.resources import Operation, ResourceError
from offline.stopping import Stopped

if TYPE_CHECKING:
    from offline.command.link import Link

_CLOSE_SECONDS = 5.0


class RemoteRunner:
    """Runs commands with the remote user's login shell. Commands with equal connection settings share a connection."""

    def __init__(self) -> None:
        self._links: dict[Connection, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """See Runner."""
        where = connection(run.properties.get("connection"))
        tasks: list[asyncio.Task[str] | None] = []

        async def start() -> str:
            tasks.append(asyncio.current_task())
            if operation.stop.requested:
                raise asyncio.CancelledError
            return await self._run(operation, where, run, capture)

        def stop() -> None:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks if task])

        try:
            with operation.stop.calling(stop):
                ended = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except CancelledError as problem:
            raise Stopped from problem
        if ended:
            operation.stop.wait(0)
        return ended

    def close(self) -> None:
        """Close all connections and the event loop."""

        async def close() -> None:
            await asyncio.gather(*(link.close() for link in self._links.values()))

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close(), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()

    async def _run(self, operation: Operation, where: Connection, run: Run, capture: Capture) -> str:
        try:
            from offline.command.link import Link  # noqa: PLC0415 - previews run no command and need no asyncssh
        except ModuleNotFoundError as problem:
            raise ResourceError(f"{problem}. Fix: run `make setup`") from problem

        link = self._links.setdefault(where, Link(where))
        try:
            async with asyncio.timeout(operation.seconds or None):
                return await link.run(operation, run.text, run.stdin.encode(), capture)
        except TimeoutError:
            raise ResourceError(f"ended because it took longer than {operation.seconds:g} s (customTimeouts)") from None
