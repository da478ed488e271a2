"""What a remote and a local Command share: when which command runs, what it is told, what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from offline.command.capture import Capture
from offline.command.inputs import Shape, check
from offline.resources import Failure, Operation, ResourceError
from offline.values import UNKNOWN, Properties, Value, is_secret, reveal

_MOST_TEXT_SHOWN = 120
_MOST_PREVIOUS_BYTES = 100 * 1024
"""Linux refuses to start a program with an environment variable of 128 KiB, so longer output is left out of it."""

_PREVIOUS = {"PULUMI_COMMAND_STDOUT": "stdout", "PULUMI_COMMAND_STDERR": "stderr"}


@dataclass(frozen=True)
class Run:
    """One command to run. `properties` are the resource's, without secret marks."""

    text: str
    environment: Mapping[str, str] = field(repr=False)
    stdin: str = field(repr=False)
    properties: Properties = field(repr=False)
    hidden: bool = False
    """Whether the text itself is a secret."""


class Runner(Protocol):
    """A place to run commands in."""

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """Run to its end. Return "" for success, else how it ended ("exit status 3"). Raises ResourceError, Stopped."""


class Command:
    """The resource: `create`, then `update` (or `create` again), then `delete`; changed `triggers` replace it."""

    def __init__(self, shape: Shape, runner: Runner) -> None:
        self._shape = shape
        self._runner = runner

    def check(self, inputs: Properties) -> tuple[Properties, Sequence[Failure]]:
        """See Resource."""
        return check(self._shape, inputs)

    def replaces(self, path: str) -> bool:
        """See Resource."""
        return path == "triggers" or path.startswith("triggers[")

    def preview(self, inputs: Properties) -> Properties:
        """See Resource."""
        return {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}

    def create(self, operation: Operation, inputs: Properties) -> Properties:
        """See Resource."""
        nothing: Properties = {"stdout": "", "stderr": ""}
        return {**inputs, **self._run(operation, inputs, inputs.get("create"), nothing)}

    def update(self, operation: Operation, state: Properties, inputs: Properties) -> Properties:
        """See Resource."""
        command = inputs.get("update") if inputs.get("update") is not None else inputs.get("create")
        return {**inputs, **self._run(operation, inputs, command, _outputs(state))}

    def delete(self, operation: Operation, state: Properties) -> None:
        """See Resource."""
        self._run(operation, state, state.get("delete"), _outputs(state))

    def schema(self) -> Mapping[str, object]:
        """See Resource."""
        inputs = {name: {"$ref": "pulumi.json#/Any"} for name in self._shape}
        outputs = {name: {"type": "string"} for name in ("stdout", "stderr")}
        return {"inputProperties": inputs, "properties": {**inputs, **outputs}}

    def _run(self, operation: Operation, properties: Properties, command: Value, previous: Properties) -> Properties:
        if command is None:
            return previous
        return run_command(self._runner, operation, properties, command, previous)


def run_command(
    runner: Runner, operation: Operation, properties: Properties, command: Value, previous: Properties
) -> Properties:
    """Run one command and return its outputs. Raises ResourceError with how it ended and its last lines of output."""
    plain = {name: reveal(value) for name, value in properties.items()}
    text = str(reveal(command))
    capture = Capture(plain.get("logging"), operation.status)
    environment, stdin = _environment(operation, plain, previous), str(plain.get("stdin") or "")
    run = Run(text, environment, stdin, plain, is_secret(command))
    ended = runner.run(operation, run, capture)
    if ended:
        raise ResourceError(_failure(ended, "a secret command" if is_secret(command) else _shown(text), capture.tail))
    return {"stdout": capture.stdout.text, "stderr": capture.stderr.text}


def _outputs(state: Properties) -> Properties:
    return {name: state.get(name, "") for name in ("stdout", "stderr")}


def _environment(operation: Operation, plain: Properties, previous: Properties) -> dict[str, str]:
    given = plain.get("environment")
    variables = {name: str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    if plain.get("addPreviousOutputInEnv") is False:
        return variables
    for variable, name in _PREVIOUS.items():
        text = str(reveal(previous[name]))
        if len(text.encode()) > _MOST_PREVIOUS_BYTES:
            operation.warning(f"{variable} is not set: the previous {name} is longer than {_MOST_PREVIOUS_BYTES} bytes")
        elif text:
            variables[variable] = text
    return variables


def _shown(text: str) -> str:
    first, *more = text.strip().split("\n")
    cut = first[:_MOST_TEXT_SHOWN]
    return f"`{cut}{' ...' if more or cut != first else ''}`"


def _failure(ended: str, command: str, tail: str) -> str:
    return f"{ended}: running {command}" + (f":\n{tail}" if tail else " (it printed nothing)")
