"""What the tests of every cloud share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from components import sdk_savings


@pytest.fixture(scope="session", autouse=True)
def _as_in_the_program() -> None:
    """Have the SDK work as it does under __main__.py: what it does not keep there cannot be read here either."""
    sdk_savings.apply()


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop for one program; the SDK makes more, one for each of its threads, and leaves all of them open."""
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
