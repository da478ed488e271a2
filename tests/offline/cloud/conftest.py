"""Fixtures for tests that use simulated clouds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.offline.cloud.stack import ROOT, TestStack


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> TestStack:
    """An empty stack. Tests use copies of it. The test is skipped if the Pulumi CLI is missing."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("needs the Pulumi CLI (make setup)")
    return TestStack(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def stack(empty: TestStack, tmp_path: Path) -> TestStack:
    """A copy of the empty stack for one test."""
    return TestStack(tmp_path, empty)
