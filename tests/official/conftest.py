"""Stacks that use an official plugin."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.offline.cloud.stack import TestStack


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest) -> Path:
    """The Pulumi home that contains the official plugin. Skips the test without --official."""
    home: str | None = request.config.getoption("--official")
    if home is None:
        pytest.skip("needs an official plugin (tools/official.sh)")
    return Path(home)


def use_official(stack: TestStack, home: Path, plugin: str) -> None:
    program = f"plugins/resource-{plugin}-v{version(f'pulumi-{plugin}')}/pulumi-resource-{plugin}"
    link = Path(stack.environment["PULUMI_HOME"]) / program
    link.unlink()
    link.symlink_to(home / program)
