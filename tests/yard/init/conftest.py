"""A checkout in a temporary folder, which contains the committed stack files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from components.plan.check import Computer
from tests.conftest import ROOT
from tests.yard.checkout_root import use_root
from yard.init.new_stack import NewStack, init

WriteStack = Callable[..., NewStack]


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stack files in the temporary checkout."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "stacks", root / "stacks")
    (root / "Pulumi.yaml").touch()
    (root / "components").symlink_to(ROOT / "components")
    use_root(root, monkeypatch)
    computer = Computer(free_memory=lambda plan: 1 << 20, used_ports=lambda plan, ports: ())
    for module in ("answers", "new_stack"):
        monkeypatch.setattr(f"yard.init.{module}.LOCAL_COMPUTER", computer)
    return root / "stacks"


@pytest.fixture
def write(stacks: Path) -> WriteStack:
    """Return a function that runs `yard init` without a cloud's CLI. Its keywords are options."""

    def run(post: str | None = None, *, force: bool = False, prompt: bool = False, **options: str) -> NewStack:
        return init(options, post=post, force=force, offline=True, prompt=prompt)

    return run
