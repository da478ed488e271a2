"""The `command` plugin, which implements the `command:remote:Command` resource."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import provider_pb2

from offline.cloud.checking import Checker
from offline.cloud.faults import strikes
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import World
from offline.command import VERSION
from offline.command.run import Run
from offline.protocol import (
    EngineLog,
    Failure,
    Plugin,
    ResourceError,
    Stop,
    check_response,
    diff_response,
    refuse,
    serve,
    stack_of,
    token_of,
)
from offline.values import UNKNOWN, Properties, Value, bare, changes, from_struct, is_secret, reveal, secret, to_struct

if TYPE_CHECKING:
    from offline.command.ssh import RemoteRunner

TOKEN = "command:remote:Command"  # noqa: S105 - a resource type
_ID_BYTES = 4
"""A resource's ID ends with this many random bytes, as in the official plugin."""
_PASSWORDS = ("password", "privateKeyPassword")
_REFUSAL = (
    "only keys without a password are supported. "
    "Fix: set an unencrypted privateKey or agentSocketPath, or install the official plugin"
)
_NO_ENVIRONMENT = Failure("environment", "is not supported. Fix: use `stdin`, or install the official plugin")
_COMMANDS = "TRAINYARD_OFFLINE_COMMANDS"
_GATE = "trainyard-gate"
_GATE_OUTPUT = "offline: no machine was checked; nothing is ready"


class CommandProvider(Plugin):
    """Implements the resource. A changed trigger replaces it. Any other change runs `update` or, if unset, `create`.

    The commands run over SSH unless the machines are simulated.
    """

    def __init__(self, log: EngineLog, stop: Stop) -> None:
        super().__init__(VERSION, log, stop)
        self._records = os.environ.get(_COMMANDS) == "record"
        self._remote: RemoteRunner | None = None
        self._starting = Lock()

    def Check(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        _refuse_others(request.urn, context)
        inputs, failures = _check(from_struct(request.news))
        return check_response(inputs, failures)

    def Diff(self, request: provider_pb2.DiffRequest, context: Any) -> provider_pb2.DiffResponse:
        old = from_struct(request.old_inputs)
        new = _without_ignored(from_struct(request.news), old, request.ignoreChanges)
        # The engine may also mark values inside a secret as secrets, which does not count as a change.
        old, new = _with_plain_secrets(old), _with_plain_secrets(new)
        return diff_response(changes(old, new), lambda path: path == "triggers" or path.startswith("triggers["))

    def Create(self, request: provider_pb2.CreateRequest, context: Any) -> provider_pb2.CreateResponse:
        inputs = from_struct(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=_unknown(inputs))
        outputs = self._run(context, request, inputs, inputs.get("create"), {})
        identity = f"{request.urn.rpartition('::')[2]}{secrets.token_hex(_ID_BYTES)}"
        return provider_pb2.CreateResponse(id=identity, properties=to_struct({**inputs, **outputs}))

    def Read(self, request: provider_pb2.ReadRequest, context: Any) -> provider_pb2.ReadResponse:
        # A command's result cannot be read again, so a refresh keeps the state.
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Update(self, request: provider_pb2.UpdateRequest, context: Any) -> provider_pb2.UpdateResponse:
        state = from_struct(request.olds)
        inputs = _without_ignored(from_struct(request.news), state, request.ignoreChanges)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=_unknown(inputs))
        command = inputs.get("update") if inputs.get("update") is not None else inputs.get("create")
        outputs = self._run(context, request, inputs, command, state)
        return provider_pb2.UpdateResponse(properties=to_struct({**inputs, **outputs}))

    def Delete(self, request: provider_pb2.DeleteRequest, context: Any) -> empty_pb2.Empty:
        _refuse_others(request.urn, context)
        state = from_struct(request.properties)
        self._run(context, request, state, state.get("delete"), state)
        return empty_pb2.Empty()

    def Invoke(self, request: provider_pb2.InvokeRequest, context: Any) -> provider_pb2.InvokeResponse:
        refuse(context, _unsupported(request.tok))

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        answer = super().Cancel(request, context)
        if self._remote:
            self._remote.cancel()
        return answer

    def close(self) -> None:
        super().close()
        if self._remote:
            self._remote.close()

    def _run(self, context: Any, request: Any, properties: Properties, command: Value, state: Properties) -> Properties:
        """Run a command and return its outputs. Without a command, return the outputs in `state`."""
        if command is None:
            return {name: state.get(name, "") for name in ("stdout", "stderr")}
        run = Run(self._operation(request.urn, request.timeout), properties, command)

        def succeed() -> None:
            if ended := _record(run) if self._records else self._runner().run(run):
                raise ResourceError(run.failure(ended))

        self._answer(context, succeed)
        return {"stdout": run.stdout.text, "stderr": run.stderr.text}

    def _runner(self) -> RemoteRunner:
        with self._starting:
            if self._remote is None:
                try:
                    # Importing asyncssh takes 0.15 s, and a preview runs no command.
                    from offline.command.ssh import RemoteRunner  # noqa: PLC0415
                except ModuleNotFoundError as problem:
                    raise ResourceError(f"{problem}. Fix: run `make setup`") from problem
                self._remote = RemoteRunner()
            return self._remote


def main(package: str, arguments: list[str]) -> None:
    """Serve the engine that started this process. Does not return."""
    serve(CommandProvider, arguments)


@cache
def _described() -> tuple[Sdk, Described]:
    sdk = Sdk("pulumi_command")
    return sdk, sdk.describe(TOKEN)


def _check(inputs: Properties) -> tuple[Properties, list[Failure]]:
    """Return the inputs and any problems. `connection` becomes a secret, as in the official plugin."""
    sdk, described = _described()
    failures = [*Checker(sdk, described.folder, {}).object(described.inputs, inputs), *_passwords(inputs, "connection")]
    if inputs.get("environment") is not None:
        failures.append(_NO_ENVIRONMENT)
    if inputs.get("connection") is None:
        return inputs, failures
    return {**inputs, "connection": secret(inputs["connection"])}, failures


def _passwords(inputs: Properties, path: str) -> list[Failure]:
    found = bare(inputs.get(path.rpartition(".")[2]))
    if not isinstance(found, dict):
        return []
    own = [Failure(f"{path}.{key}", _REFUSAL) for key in _PASSWORDS if found.get(key) is not None]
    return [*own, *_passwords(found, f"{path}.proxy")]


def _record(run: Run) -> str:
    """Record a simulated machine's command in `commands.jsonl`, next to the stack's simulated resources.

    The line contains neither the standard input nor the text of a secret command. The command succeeds unless
    faults.yaml makes it fail.
    """
    connection = run.properties.get("connection")
    where = connection if isinstance(connection, dict) else {}
    line: dict[str, Any] = {
        "urn": run.operation.urn,
        "host": where.get("host"),
        "user": where.get("user"),
        "command": "(secret)" if run.hidden else run.text,
    }
    if run.stdin:
        line["stdin_bytes"] = len(run.stdin)
    world = World(stack_of(run.operation.urn))
    for fault in strikes(world, "command", TOKEN, run.operation.name):
        if fault.fault == "failed":
            return "the fault `failed` in faults.yaml"
        run.operation.stop.pause(fault.seconds)
    with world.locked(), (world.folder / "commands.jsonl").open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    run.stdout.feed(f"{_GATE_OUTPUT if _GATE in run.text else 'offline'}\n".encode())
    run.stdout.feed(b"")
    return ""


def _refuse_others(urn: str, context: Any) -> None:
    if token_of(urn) != TOKEN:
        refuse(context, _unsupported(token_of(urn)))


def _unsupported(token: str) -> str:
    return f"{token}: the replacement for pulumi-command supports only {TOKEN}. Fix: install the official plugin"


def _unknown(inputs: Properties) -> struct_pb2.Struct:
    return to_struct({**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN})


def _with_plain_secrets(properties: Properties) -> Properties:
    return {name: secret(reveal(value)) if is_secret(value) else value for name, value in properties.items()}


def _without_ignored(new: Properties, old: Properties, ignored: Iterable[str]) -> Properties:
    """Return `new`, but with the old values of the properties that the resource option ignoreChanges lists."""
    return {**new, **{name: old[name] for name in ignored if name in old}}
