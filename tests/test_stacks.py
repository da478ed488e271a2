"""Every stack of the project is usable, and every platform has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.checks import Level
from components.platforms import PLATFORMS
from components.stackfile import read_stack

ROOT = Path(__file__).parent.parent
STACKS = sorted((ROOT / "stacks").glob("*.yaml"))


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_a_stack_parses_without_warnings(file: Path) -> None:
    assert file.name.startswith("Pulumi."), "Pulumi finds only stacks/Pulumi.<stack>.yaml"
    assert [remark for remark in read_stack(file).remarks if remark.level is not Level.INFO] == []


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_a_stack_holds_no_salt_and_no_secret(file: Path) -> None:
    text = file.read_text()
    assert "encryptionsalt" not in text
    assert "secure:" not in text


def test_every_platform_has_a_stack() -> None:
    assert {read_stack(file).plan.provider for file in STACKS} == set(PLATFORMS)
