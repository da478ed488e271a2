"""The gRPC side: what the Pulumi engine asks of a provider, answered for `command:remote:Command`."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import uuid
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from offline.command.connection import CommandFailed, Connection, Running, run

VERSION = "1.2.1"
TYPE = "command:remote:Command"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How the engine spells a value that is not known yet."""

_PREFIX = "trainyard-command-"
_STREAMS = {"stdout": ("stdout",), "stderr": ("stderr",), "none": (), "stdoutAndStderr": ("stdout", "stderr")}


def _plain(struct: struct_pb2.Struct) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(struct)
    return found


def _struct(values: dict[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct


def _private_folder() -> Path:
    """Make this process's folder for sockets and keys, and remove those of processes that were killed."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        if left.stat().st_uid == os.getuid() and not Path(f"/proc/{left.name.split('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


class CommandProvider(provider_pb2_grpc.ResourceProviderServicer):
    """Runs remote commands as the official plugin does: create, update (or create again), delete, triggers replace."""

    def __init__(self, engine: engine_pb2_grpc.EngineStub | None) -> None:
        self._engine = engine
        self._folder = _private_folder()
        self._running = Running()

    def close(self) -> None:
        """End what runs and remove the private folder."""
        self._running.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    def Handshake(self, request: Any, context: Any) -> Any:
        return provider_pb2.ProviderHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetSchemaResponse(schema="{}")

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> Any:
        # Without acceptSecrets the engine itself keeps an output secret whose input of the same name was.
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        failures = []
        if request.type != TYPE:
            reason = f"the stand-in runs {TYPE} only, not {request.type}; install the official pulumi-command plugin"
            failures.append(provider_pb2.CheckFailure(property="", reason=reason))
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    def Diff(self, request: Any, context: Any) -> Any:
        old, new = _plain(request.old_inputs), _plain(request.news)
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        replaces = [key for key in changed if key == "triggers"]
        kind = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=kind, diffs=changed, replaces=replaces)

    def Create(self, request: Any, context: Any) -> Any:
        inputs = _plain(request.properties)
        outs = self._outputs(request, inputs, inputs.get("create"), context)
        return provider_pb2.CreateResponse(id=uuid.uuid4().hex, properties=_struct(outs))

    def Update(self, request: Any, context: Any) -> Any:
        inputs = _plain(request.news)
        outs = self._outputs(request, inputs, inputs.get("update") or inputs.get("create"), context)
        return provider_pb2.UpdateResponse(properties=_struct(outs))

    def Delete(self, request: Any, context: Any) -> Any:
        state = _plain(request.properties)
        if state.get("delete"):
            self._outputs(request, state, state["delete"], context)
        return empty_pb2.Empty()

    def Read(self, request: Any, context: Any) -> Any:
        # A command has no state to look at: what it once printed stays true.
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Cancel(self, request: Any, context: Any) -> Any:
        self._running.cancel()
        return empty_pb2.Empty()

    def Attach(self, request: Any, context: Any) -> Any:
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(request.address))
        return empty_pb2.Empty()

    def _outputs(self, request: Any, inputs: dict[str, Any], text: str | None, context: Any) -> dict[str, Any]:
        if getattr(request, "preview", False):
            return {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}
        if not text:
            return {**inputs, "stdout": "", "stderr": ""}
        shown = _STREAMS[inputs.get("logging") or "stdoutAndStderr"]

        def log(stream: str, line: str) -> None:
            if stream in shown and line:
                self._log(request.urn, f"{line}\n")

        # Most sshd accept no environment from outside, so it travels in front of the command.
        given: dict[str, str] = inputs.get("environment") or {}
        environment = "".join(f"{key}={shlex.quote(value)} " for key, value in given.items())
        try:
            connection = Connection(inputs["connection"], self._folder)
            connection.dial(self._running)
            result = run(connection.command(environment + text), inputs.get("stdin"), log, self._running)
        except CommandFailed as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return {**inputs, "stdout": result.stdout, "stderr": result.stderr}

    def _log(self, urn: str, message: str) -> None:
        if self._engine is not None:
            self._engine.Log(engine_pb2.LogRequest(severity=engine_pb2.INFO, message=message, urn=urn, streamId=1))


def serve(arguments: list[str]) -> int:
    """Serve until the engine closes our stdin's end or ends us. `arguments`: the engine's own address, or nothing."""
    engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(arguments[0])) if arguments else None
    provider = CommandProvider(engine)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    # A terminal sends Ctrl-C to the engine and to us; the engine tells us what to cancel, and ends us itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(None))
    try:
        server.wait_for_termination()
    finally:
        provider.close()
    return 0
