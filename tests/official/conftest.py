"""Stacks that use an official plugin."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest) -> Path:
    """The Pulumi home that contains the official plugin. Skips the test without --official."""
    home: str | None = request.config.getoption("--official")
    if home is None:
        pytest.skip("needs an official plugin (tools/official.sh)")
    return Path(home)
