"""Shell completion of commands, stacks, recipes, launchers, hosts and groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack
from yard.commands.cli import app
from yard.job.launcher import LAUNCHERS
from yard.job.loader import recipe_names
from yard.stack.load import load_stack
from yard.stack.workspace import stack_names


def complete(line: str) -> list[str]:
    """Return the completions of the last word of a command line in bash."""
    words = line.split()
    position = len(words) if line.endswith(" ") else len(words) - 1
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(position), "_YARD_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, prog_name="yard", env=environment)
    assert result.exit_code == 0
    return result.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert complete("yard re") == ["recipes", "resume", "refresh", "reproduce"]
    assert complete("yard hosts ") == ["scan", "forget"]
    assert complete("yard submit --no-") == ["--no-code"]


@pytest.mark.parametrize("line", ["yard submit --stack ", "yard preview ", "yard bench nccl --stack "])
def test_stacks_are_completed(line: str) -> None:
    assert complete(line) == stack_names()
    assert complete(line + "azure-h") == ["azure-h100"]


def test_recipes_and_job_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train.log", "job.sbatch"):
        (tmp_path / name).touch()
    assert complete("yard submit tr") == ["train-tiny", "train.py"]
    assert complete("yard submit ") == [*recipe_names(), "job.sbatch", "train.py"]
    assert complete("yard recipes ") == recipe_names()
    assert complete("yard submit ./") == []  # the shell completes file names
    assert complete("yard submit train.py --launcher ") == list(LAUNCHERS)


def test_hosts_are_completed_from_the_cache(stack: FakeStack) -> None:
    assert complete("yard ssh ") == []
    load_stack("local")
    calls = len(stack.pulumi.calls)
    assert complete("yard ssh ") == ["yard-gpu-0", "yard-gpu-1", "yard-head"]
    assert complete("yard submit --group ") == ["gpu"]
    assert complete("yard ssh --stack other ") == []
    assert len(stack.pulumi.calls) == calls
