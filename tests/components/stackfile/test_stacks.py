"""The stack files in the project are valid, and there is one for each platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.plan.check import Level
from components.platforms import PLATFORMS
from components.stackfile.read import parse_stack, read_stack
from tests.components.platforms.recording import stack_text

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


RUNTIMES = {
    "azure-a100": "enroot",
    "azure-h100": "enroot",
    "baremetal-h100": "none",
    "gcp-a2": "docker",
    "gcp-a3-mega": "enroot",
    "lambda-a6000": "none",
    "local": "none",
}
"""Container runtime of each stack. Only gcp-a2 sets the key, so the other values are defaults."""


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_created_machines_with_gpus_get_enroot_by_default(file: Path) -> None:
    assert read_stack(file).plan.containers == RUNTIMES[file.stem.removeprefix("Pulumi.")]


@pytest.mark.parametrize("runtime", ["none", "enroot"])
def test_stack_file_can_set_another_container_runtime(runtime: str) -> None:
    for stack in ("azure-a100", "local"):
        assert parse_stack(stack_text(stack, containers=runtime), "test").plan.containers == runtime


def test_each_platform_has_a_stack() -> None:
    assert {read_stack(file).plan.provider for file in STACKS} == set(PLATFORMS)
