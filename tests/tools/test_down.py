"""`make down` removes Pulumi's state files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import down
from trainyard import checkout


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with the files that remain after a stack is removed."""
    monkeypatch.setattr(checkout, "state", lambda: tmp_path)
    for folder in (
        "state/.pulumi/stacks/trainyard",
        "state/.pulumi/backups",
        "pulumi-home/logs",
        "pulumi-home/plugins",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "state/.pulumi/stacks/trainyard/local.json.bak").write_text("{}")
    return tmp_path


def test_state_is_removed_after_the_last_stack(state: Path) -> None:
    down.remove_empty_state()
    assert not (state / "state/.pulumi").exists()
    assert [path.name for path in (state / "pulumi-home").iterdir()] == ["plugins"]


def test_state_of_another_stack_is_kept(state: Path) -> None:
    other = state / "state/.pulumi/stacks/trainyard/azure-h100.json"
    other.write_text("{}")
    down.remove_empty_state()
    assert other.exists()
    assert (state / "state/.pulumi/backups").exists()
