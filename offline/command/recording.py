"""Record the commands for simulated machines without running them.

Each command is one JSON line in the folder for the stack's simulated clouds. The line contains neither
the standard input nor the text of a secret command.
"""

from __future__ import annotations

import json
import os
from typing import Any

from offline.cloud.faults import strikes
from offline.cloud.world import World
from offline.command.capture import Capture
from offline.command.inputs import TOKEN
from offline.command.run import Run
from offline.protocol import stack_of
from offline.resources import Operation

FILE = "commands.jsonl"
_ENVIRONMENT = "TRAINYARD_OFFLINE_COMMANDS"
_GATE = "trainyard-gate"
_GATE_OUTPUT = "offline: no machine was checked; nothing is ready"


def recording() -> bool:
    """Return whether this process uses simulated machines."""
    return os.environ.get(_ENVIRONMENT) == "record"


class Recorder:
    """A Runner that writes commands to a file."""

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """Record a command. It succeeds, unless the stack's faults.yaml contains a fault for it."""
        connection = run.properties.get("connection")
        where = connection if isinstance(connection, dict) else {}
        line: dict[str, Any] = {
            "urn": operation.urn,
            "host": where.get("host"),
            "user": where.get("user"),
            "command": "(secret)" if run.hidden else run.text,
        }
        if run.stdin:
            line["stdin_bytes"] = len(run.stdin.encode())
        world = World(stack_of(operation.urn))
        for fault in strikes(world, "command", TOKEN, operation.name):
            if fault.fault == "failed":
                return "the fault `failed` in faults.yaml"
            operation.stop.wait(fault.seconds)
        with world.locked(), (world.folder / FILE).open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        capture.stdout.feed(f"{_GATE_OUTPUT if _GATE in run.text else 'offline'}\n".encode())
        capture.stdout.feed(b"")
        return ""

    def close(self) -> None:
        """Do nothing, because there are no connections."""
