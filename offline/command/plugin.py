"""The `command` plugin, which implements the resource `command:remote:Command`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from offline.changes import changes
from offline.command import VERSION
from offline.command.inputs import TOKEN, check
from offline.command.recording import Recorder, recording
from offline.command.remote import RemoteRunner
from offline.command.run import Runner, run_command
from offline.engine import EngineLog
from offline.protocol import Plugin, check_failures, diff_response, refuse, token_of
from offline.resources import Operation
from offline.serving import engine_address, serve
from offline.stopping import Stop
from offline.values import UNKNOWN, Properties, Value, from_struct, is_secret, reveal, secret, to_struct

_END_SECONDS = 3.0
"""The engine waits 5 s for a plugin to exit."""
_ID_BYTES = 4
"""Random bytes at the end of a resource's id, as in the official plugin."""


def new_runner() -> Runner:
    """Return a runner that uses SSH, or a runner that only records commands if the machines are simulated."""
    return Recorder() if recording() else RemoteRunner()


class CommandProvider(Plugin):
    """A changed trigger replaces the resource. Any other change runs `update`, or `create` if `update` is not set."""

    def __init__(self, runner: Runner, log: EngineLog, stop: Stop) -> None:
        super().__init__(VERSION, log, stop)
        self._runner = runner

    def Check(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        _refuse_others(request.urn, context)
        inputs, failures = check(from_struct(request.news))
        return provider_pb2.CheckResponse(
            inputs=to_struct(inputs),
            failures=check_failures(failures),
        )

    def Diff(self, request: provider_pb2.DiffRequest, context: Any) -> provider_pb2.DiffResponse:
        old = from_struct(request.old_inputs)
        new = _without_ignored(from_struct(request.news), old, request.ignoreChanges)
        # The engine may also mark values inside a secret as secrets, which is not a change.
        old, new = _with_plain_secrets(old), _with_plain_secrets(new)
        return diff_response(changes(old, new), lambda path: path == "triggers" or path.startswith("triggers["))

    def Create(self, request: provider_pb2.CreateRequest, context: Any) -> provider_pb2.CreateResponse:
        inputs = from_struct(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=to_struct(_unknown(inputs)))
        operation = self._operation(request.urn, request.timeout)
        outputs = self._run(context, operation, inputs, inputs.get("create"), {})
        identity = f"{operation.name}{secrets.token_hex(_ID_BYTES)}"
        return provider_pb2.CreateResponse(id=identity, properties=to_struct({**inputs, **outputs}))

    def Read(self, request: provider_pb2.ReadRequest, context: Any) -> provider_pb2.ReadResponse:
        # The result of a command cannot be read again, so a refresh keeps the state.
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Update(self, request: provider_pb2.UpdateRequest, context: Any) -> provider_pb2.UpdateResponse:
        state = from_struct(request.olds)
        inputs = _without_ignored(from_struct(request.news), state, request.ignoreChanges)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=to_struct(_unknown(inputs)))
        command = inputs.get("update") if inputs.get("update") is not None else inputs.get("create")
        outputs = self._run(context, self._operation(request.urn, request.timeout), inputs, command, state)
        return provider_pb2.UpdateResponse(properties=to_struct({**inputs, **outputs}))

    def Delete(self, request: provider_pb2.DeleteRequest, context: Any) -> empty_pb2.Empty:
        _refuse_others(request.urn, context)
        state = from_struct(request.properties)
        self._run(context, self._operation(request.urn, request.timeout), state, state.get("delete"), state)
        return empty_pb2.Empty()

    def Invoke(self, request: provider_pb2.InvokeRequest, context: Any) -> provider_pb2.InvokeResponse:
        refuse(context, _unsupported(request.tok))

    def _run(
        self, context: Any, operation: Operation, properties: Properties, command: Value, state: Properties
    ) -> Properties:
        """Run a command and return its outputs. `state` contains the outputs of the previous command."""
        previous = {name: state.get(name, "") for name in ("stdout", "stderr")}
        return self._answer(context, lambda: run_command(self._runner, operation, properties, command, previous))


def main(package: str, arguments: list[str]) -> None:
    """Serve the engine that started this process. Does not return."""
    stop, runner = Stop(), new_runner()

    def close() -> None:
        stop.finish(_END_SECONDS)
        runner.close()

    serve(CommandProvider(runner, EngineLog(engine_address(arguments)), stop), close)


def _refuse_others(urn: str, context: Any) -> None:
    if token_of(urn) != TOKEN:
        refuse(context, _unsupported(token_of(urn)))


def _unsupported(token: str) -> str:
    return f"{token}: the replacement for pulumi-command supports only {TOKEN}. Fix: install the official plugin"


def _unknown(inputs: Properties) -> Properties:
    """Return the outputs for a preview."""
    return {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}


def _with_plain_secrets(properties: Properties) -> Properties:
    return {name: secret(reveal(value)) if is_secret(value) else value for name, value in properties.items()}


def _without_ignored(new: Properties, old: Properties, ignored: Iterable[str]) -> Properties:
    """Return `new` with the old values of the properties in `ignored` (the resource option ignoreChanges)."""
    return {**new, **{name: old[name] for name in ignored if name in old}}
