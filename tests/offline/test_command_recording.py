"""Commands for simulated machines are recorded without secrets and are never executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline.values import Properties, reveal
from tests.offline.plugin import REMOTE, Plugin, hidden, serving

CONNECTION: dict[str, Any] = {"host": "203.0.113.7", "user": "ops", "privateKey": "the private key"}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """A plugin that records commands."""
    monkeypatch.setenv("TRAINYARD_OFFLINE", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_OFFLINE_COMMANDS", "record")
    with serving() as found:
        yield found


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "stack" / "commands.jsonl").read_text().splitlines()]


def test_commands_are_recorded(recorder: Plugin, tmp_path: Path) -> None:
    inputs = {
        "connection": hidden(CONNECTION),
        "create": "sudo trainyard-gate",
        "stdin": hidden("munge"),
        "delete": "bye",
    }
    _, outputs = recorder.create(REMOTE, inputs)
    assert reveal(outputs["stdout"]) == "offline: no machine was checked; nothing is ready"
    recorder.delete(REMOTE, outputs)
    created, deleted = _records(tmp_path)
    found = [created[key] for key in ("host", "user", "command", "stdin_bytes")]
    assert found == ["203.0.113.7", "ops", "sudo trainyard-gate", 5]
    assert deleted["command"] == "bye"


def test_a_recorded_command_does_not_run(recorder: Plugin, tmp_path: Path) -> None:
    _, outputs = recorder.create(REMOTE, {"connection": hidden(CONNECTION), "create": f"touch {tmp_path}/made"})
    assert outputs["stdout"] == "offline"
    assert not (tmp_path / "made").exists()


def test_no_secret_is_recorded(recorder: Plugin, tmp_path: Path) -> None:
    inputs: Properties = {
        "connection": hidden(CONNECTION),
        "create": hidden("echo hush"),
        "stdin": hidden("hush"),
    }
    recorder.create(REMOTE, inputs)
    text = (tmp_path / "stack" / "commands.jsonl").read_text()
    assert "hush" not in text
    assert "private key" not in text
    (found,) = _records(tmp_path)
    assert found["command"] == "(secret)"
