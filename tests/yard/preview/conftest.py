"""Fixture for descriptions of edited copies of the project's stack files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.components.platforms.recording import stack_text
from yard.preview.describe import Description, describe

DescribeEdited = Callable[..., Description]


@pytest.fixture
def edited(tmp_path: Path) -> DescribeEdited:
    """Return a function that describes a stack in the project with edited cluster keys."""

    def make(stack: str, name: str = "", **edits: object) -> Description:
        named = name or stack
        (tmp_path / f"Pulumi.{named}.yaml").write_text(stack_text(stack, **edits))
        return describe(named, tmp_path)

    return make
