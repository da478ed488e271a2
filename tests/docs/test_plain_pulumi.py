"""The commands in docs/pulumi.md run in a copy of the tracked files, without `make setup`."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.plain_clone import PlainClone, commands
from yard.stack.workspace import PLUGINS, added_keys

PAGE = ROOT / "docs" / "pulumi.md"
STACK_FILE = "stacks/Pulumi.azure-a100.yaml"
SECOND_OPERATOR = """
pulumi login "$BACKEND"
pulumi install
pulumi stack select azure-a100
pulumi preview --diff --expect-no-changes
.venv/bin/python -m yard refresh --save ~/jobs.json
.venv/bin/python -m yard hostfile --outputs ~/jobs.json
"""


def test_versions_on_the_page_are_current() -> None:
    text = PAGE.read_text()
    for plugin, package in PLUGINS.items():
        assert f"| plugin {plugin} | {version(package)} |" in text
    wanted = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["requiredPulumiVersion"]
    assert f"| {wanted.removeprefix('>=')} or newer |" in text


@pytest.mark.engine
def test_a_clone_is_deployed_with_the_cli_alone(tmp_path: Path) -> None:
    clone = PlainClone(tmp_path)
    printed = clone.run(commands(PAGE, "plain-pulumi"))
    assert "opt-gpu-0 slots=8\nopt-gpu-1 slots=8\n" in printed
    assert clone.resources("azure-a100")
    # The page states which keys Pulumi adds to the stack file.
    assert list(added_keys((clone.root / STACK_FILE).read_text())) == ["encryptionsalt"]
    assert "`encryptionsalt`" in PAGE.read_text()
    check_second_operator(clone, PlainClone(tmp_path / "second"))


def check_second_operator(first: PlainClone, second: PlainClone) -> None:
    """Check that a second clone with the same stack file sees no changes, and saves a file for a job user."""
    shutil.copy(first.root / STACK_FILE, second.root / STACK_FILE)
    printed = second.run(
        SECOND_OPERATOR,
        BACKEND=f"file://{first.home}/states?metadata=skip",
        PULUMI_CONFIG_PASSPHRASE_FILE=str(first.home / "passphrase"),
        TRAINYARD_OFFLINE=str(first.home / "clouds"),
    )
    assert printed.endswith("opt-gpu-0 slots=8\nopt-gpu-1 slots=8\n")
    assert (second.root / STACK_FILE).read_text() == (first.root / STACK_FILE).read_text()
    outputs = json.loads((second.home / "jobs.json").read_text())
    assert set(outputs) == {"cluster", "user_private_key"}
