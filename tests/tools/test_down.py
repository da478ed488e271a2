"""What `make down` clears of Pulumi's own files, and what it keeps while another stack needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import down


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder as it is after a stack's removal."""
    monkeypatch.setattr(down, "STATE", tmp_path)
    for folder in (
        "state/.pulumi/stacks/trainyard",
        "state/.pulumi/backups",
        "pulumi-home/logs",
        "pulumi-home/plugins",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "state/.pulumi/stacks/trainyard/local.json.bak").write_text("{}")
    return tmp_path


def test_nothing_stays_after_the_last_stack(state: Path) -> None:
    down.remove_empty_state()
    assert not (state / "state/.pulumi").exists()
    assert [path.name for path in (state / "pulumi-home").iterdir()] == ["plugins"]


def test_state_of_another_stack_stays(state: Path) -> None:
    other = state / "state/.pulumi/stacks/trainyard/azure-h100.json"
    other.write_text("{}")
    down.remove_empty_state()
    assert other.exists()
    assert (state / "state/.pulumi/backups").exists()
