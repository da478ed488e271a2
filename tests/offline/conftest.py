"""Fixtures for plugin tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.offline.plugin import Plugin, serving


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with serving() as found:
        yield found
