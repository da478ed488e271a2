"""Stack files of a test's own, described by the code under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.preview.describe import describe
from jobs.preview.shape import Description
from tests.platforms.recording import stack_text

DescribeEdited = Callable[..., Description]


@pytest.fixture
def edited(tmp_path: Path) -> DescribeEdited:
    """Describe a stack of the project with keys of its cluster replaced, under a name of its own."""

    def make(stack: str, name: str = "", **edits: object) -> Description:
        named = name or stack
        (tmp_path / f"Pulumi.{named}.yaml").write_text(stack_text(stack, **edits))
        return describe(named, tmp_path)

    return make
