"""Commands for simulated machines: noted, not run. What they would have answered is made up.

The note is one JSON line per command in the stack's simulated cloud. It holds no secret: no standard input, no values
of the environment, no command that is a secret itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from offline.cloud.world import World
from offline.command.capture import Capture
from offline.command.commands import Run
from offline.command.copy import CopyToRemote
from offline.command.link import Links
from offline.resources import Operation
from offline.values import Properties, reveal

FILE = "commands.jsonl"
_ENVIRONMENT = "TRAINYARD_OFFLINE_COMMANDS"
_ANSWERS: Sequence[tuple[str, str]] = (("trainyard-gate", "offline: no node was asked; nothing is ready"),)
"""Last words by a part of the command; the rest answer just "offline"."""


def wanted() -> bool:
    """Tell whether this run's machines are simulated."""
    return os.environ.get(_ENVIRONMENT) == "record"


class Recorder:
    """Stands where a Runner runs commands."""

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """See Runner. Every command succeeds."""
        note: dict[str, Any] = {"command": "(secret)" if run.hidden else run.text}
        if run.stdin:
            note["stdin_bytes"] = len(run.stdin.encode())
        if run.environment:
            note["environment"] = sorted(run.environment)
        _write(operation, run.properties, note)
        answer = next((words for part, words in _ANSWERS if part in run.text), "offline")
        capture.stdout.feed(f"{answer}\n".encode())
        capture.stdout.feed(b"")
        return ""


class RecordedCopy(CopyToRemote):
    """A copy that is noted, not made."""

    def __init__(self) -> None:
        super().__init__(Links())

    def create(self, operation: Operation, inputs: Properties) -> Properties:
        """See Resource."""
        _write(
            operation, {name: reveal(value) for name, value in inputs.items()}, {"copy_to": inputs.get("remotePath")}
        )
        return inputs


def _write(operation: Operation, plain: Properties, note: Mapping[str, Any]) -> None:
    connection = plain.get("connection")
    place = connection if isinstance(connection, dict) else {}
    stack = operation.urn.split("::", maxsplit=1)[0].rpartition(":")[2]
    world = World(stack)
    line = {"urn": operation.urn, "host": place.get("host"), "user": place.get("user"), **note}
    with world.locked(), (world.folder / FILE).open("a") as file:
        file.write(f"{json.dumps(line)}\n")
