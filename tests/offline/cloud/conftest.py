"""A stack on simulated clouds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.offline.cloud.stack import ROOT, TestStack


@pytest.fixture
def stack(tmp_path: Path) -> TestStack:
    """An empty stack. Skips where there is no Pulumi CLI."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("there is no pulumi here (make setup)")
    return TestStack(tmp_path)
