"""Commands for simulated machines: noted without their secrets, and never run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline.values import MARK, Properties, reveal
from tests.offline.plugin import COPY, LOCAL, REMOTE, Plugin, hidden, serving

HERE: dict[str, Any] = {"host": "203.0.113.7", "user": "ops", "privateKey": "the private key"}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """The plugin, told that machines are simulated."""
    monkeypatch.setenv("TRAINYARD_OFFLINE", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_OFFLINE_COMMANDS", "record")
    with serving() as found:
        yield found


def _notes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "stack" / "commands.jsonl").read_text().splitlines()]


def test_a_command_is_noted_and_answered(recorder: Plugin, tmp_path: Path) -> None:
    inputs = {"connection": hidden(HERE), "create": "sudo trainyard-gate", "stdin": hidden("munge"), "delete": "bye"}
    _, outputs = recorder.create(REMOTE, inputs)
    assert reveal(outputs["stdout"]) == "offline: no node was asked; nothing is ready"
    recorder.delete(REMOTE, outputs)
    made, gone = _notes(tmp_path)
    assert (made["host"], made["user"], made["command"], made["stdin_bytes"]) == (
        "203.0.113.7",
        "ops",
        "sudo trainyard-gate",
        5,
    )
    assert gone["command"] == "bye"


def test_no_secret_is_noted(recorder: Plugin, tmp_path: Path) -> None:
    environment: Properties = {"TOKEN": hidden("hush")}
    inputs: Properties = {
        "connection": hidden(HERE),
        "create": hidden("echo hush"),
        "stdin": hidden("hush"),
        "environment": environment,
    }
    recorder.create(REMOTE, inputs)
    text = (tmp_path / "stack" / "commands.jsonl").read_text()
    assert "hush" not in text
    assert "private key" not in text
    (note,) = _notes(tmp_path)
    assert (note["command"], note["environment"]) == ("(secret)", ["TOKEN"])


def test_local_commands_and_copies_do_nothing_either(recorder: Plugin, tmp_path: Path) -> None:
    recorder.create(LOCAL, {"create": f"touch {tmp_path}/made"})
    recorder.create(
        COPY, {"connection": hidden(HERE), "remotePath": "/etc/x", "source": {MARK: "asset", "text": "hush"}}
    )
    assert not (tmp_path / "made").exists()
    ran, copied = _notes(tmp_path)
    assert ran["command"].startswith("touch")
    assert copied["copy_to"] == "/etc/x"
    assert "hush" not in json.dumps(copied)
