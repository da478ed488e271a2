"""Fixtures for tests that use simulated clouds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offline.cloud.stack import TestStack, require_pulumi


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> TestStack:
    """An empty stack. Tests use copies of it."""
    require_pulumi()
    return TestStack(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def stack(empty: TestStack, tmp_path: Path) -> TestStack:
    return TestStack(tmp_path, empty)
