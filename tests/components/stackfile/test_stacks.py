"""The stack files in the project are valid, and there is one for each platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.plan.checks.base import Level
from components.platforms import PLATFORMS
from components.stackfile.read import read_stack

ROOT = Path(__file__).parents[3]
STACKS = sorted((ROOT / "stacks").glob("*.yaml"))


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_stack_is_valid_without_warnings(file: Path) -> None:
    assert file.name.startswith("Pulumi."), "Pulumi finds only stacks/Pulumi.<stack>.yaml"
    found = [finding.check for finding in read_stack(file).findings if finding.level is not Level.INFO]
    # Users must replace the example network in some stack files.
    assert set(found) <= {"ssh-example"}


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_stack_has_no_salt_and_no_secrets(file: Path) -> None:
    text = file.read_text()
    assert "encryptionsalt" not in text
    assert "secure:" not in text


def test_each_platform_has_a_stack() -> None:
    assert {read_stack(file).plan.provider for file in STACKS} == set(PLATFORMS)
