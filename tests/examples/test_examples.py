"""Every example runs with the commands in its README.md, on simulated clouds."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.plain_clone import PlainClone, commands

EXAMPLES = sorted(folder for folder in (ROOT / "examples").iterdir() if folder.is_dir())
LOGIN = """
mkdir ~/states
export PULUMI_CONFIG_PASSPHRASE=x PULUMI_BACKEND_URL="file://$HOME/states"
"""
EXPECTED = {
    "automation-api": ("head: 203.0.113.", "+ 33 to create"),
    "own-program": ('disk             : "datasets-', "own-gpu-1 slots=1"),
    "stack-reference": ('"opt-gpu-1"', '"gpus": 16'),
}
"""Expected parts of each example's output."""


def test_every_example_has_an_expected_output() -> None:
    assert {folder.name for folder in EXAMPLES} == set(EXPECTED)


def test_the_package_of_the_stack_reference_is_current() -> None:
    text = (ROOT / "examples" / "stack-reference" / "requirements.txt").read_text()
    assert text == f"pulumi=={version('pulumi')}\n"


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda folder: str(folder.name))
def test_commands_of_the_example_succeed(example: Path, tmp_path: Path) -> None:
    clone = PlainClone(tmp_path)
    # requirements.txt of an example installs the checkout, so that its packages can be imported.
    printed = clone.run(LOGIN + commands(example / "README.md", example.name), PYTHONPATH=str(clone.root))
    for part in EXPECTED[example.name]:
        assert part in printed
    assert clone.resources("dev" if example.name == "own-program" else "azure-a100")
