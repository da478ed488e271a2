"""Fixtures for tests of the plugins and of the simulated clouds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offline.cloud.stack import TestStack, require_pulumi
from tests.offline.plugin import Plugin, serving


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> TestStack:
    """An empty stack. Tests use copies of it."""
    require_pulumi()
    return TestStack(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def stack(empty: TestStack, tmp_path: Path) -> TestStack:
    return TestStack(tmp_path, empty)
