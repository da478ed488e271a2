"""Fixtures for all platform tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.components.platforms.recording import Build, record


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop for one program. The fixture also closes the loops that the SDK creates in its threads."""
    made: list[asyncio.AbstractEventLoop] = []
    new = asyncio.new_event_loop

    def recorded() -> asyncio.AbstractEventLoop:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", recorded)
    asyncio.set_event_loop(recorded())
    yield made[0]
    made[0].run_until_complete(made[0].shutdown_default_executor())
    asyncio.set_event_loop(None)
    for loop in made:
        loop.close()


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Declare the platform for an edited stack, with mocks instead of the engine."""
    return lambda stack, **edits: record(stack, edits)
