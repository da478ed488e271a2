"""Run one resource command and return its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from offline.command.capture import Capture
from offline.resources import Operation, ResourceError
from offline.values import Properties, Value, is_secret, reveal

_MOST_TEXT_SHOWN = 120


@dataclass(frozen=True)
class Run:
    """A command. `properties` contains the resource's properties. Secrets are replaced by their contents."""

    text: str
    stdin: str = field(repr=False)
    properties: Properties = field(repr=False)
    hidden: bool = False
    """Whether the text itself is a secret."""


class Runner(Protocol):
    """Runs commands."""

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """Run a command until it ends. Return "" on success, or the reason for the failure ("exit status 3").

        Raises ResourceError and Stopped.
        """

    def close(self) -> None:
        """Close all connections."""


def run_command(
    runner: Runner, operation: Operation, properties: Properties, command: Value, previous: Properties
) -> Properties:
    """Run a command and return its `stdout` and `stderr`. Without a command, return `previous`, which contains the
    outputs of the previous command. Raises ResourceError if the command fails.
    """
    if command is None:
        return previous
    plain = {name: reveal(value) for name, value in properties.items()}
    text = str(reveal(command))
    capture = Capture(plain.get("logging"), operation.status)
    run = Run(text, str(plain.get("stdin") or ""), plain, is_secret(command))
    ended = runner.run(operation, run, capture)
    if ended:
        shown = "a secret command" if is_secret(command) else _shown(text)
        raise ResourceError(f"{ended}: running {shown}" + (f":\n{capture.tail}" if capture.tail else " (no output)"))
    return {"stdout": capture.stdout.text, "stderr": capture.stderr.text}


def _shown(text: str) -> str:
    first, *more = text.strip().split("\n")
    cut = first[:_MOST_TEXT_SHOWN]
    return f"`{cut}{' ...' if more or cut != first else ''}`"
