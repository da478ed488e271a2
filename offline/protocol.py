"""The parts of Pulumi's provider protocol that this project's plugins share, and the process that serves a plugin."""

from __future__ import annotations

import itertools
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from offline.values import Change, Properties, to_struct
from trainyard.errors import PlatformError

_T = TypeVar("_T")

_LOG_SECONDS = 10.0
_THREADS = 256
"""Each running command occupies a thread, and Cancel needs another one."""
_MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The engine's limit."""
_ANSWER_SECONDS = 1.0
"""How long the plugin is allowed to take to send its last responses before it exits."""


class ResourceError(Exception):
    """A failed operation. The engine shows the message next to the resource."""


class Stopped(Exception):
    """The operation stopped because the update was cancelled. The message is pulumi-command's."""

    def __init__(self) -> None:
        super().__init__("context canceled")


class Failure(NamedTuple):
    """A problem with the input at the path `property`."""

    property: str
    reason: str


class Stop(Event):
    """A request to stop all running operations. The request is made at most once and cannot be withdrawn."""

    def pause(self, seconds: float = 0) -> None:
        """Sleep for `seconds`, but raise Stopped as soon as a stop is requested."""
        if self.wait(seconds):
            raise Stopped


class EngineLog:
    """Sends messages about resources to the engine at `address`, or discards them if there is no engine.

    All messages about one operation have the same `stream`.
    """

    def __init__(self, address: str) -> None:
        self._stub: engine_pb2_grpc.EngineStub | None = None
        if address:
            self.attach(address)

    def attach(self, address: str) -> None:
        """Send all further messages to this engine."""
        self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))

    def send(self, urn: str, stream: int, text: str, *, warning: bool) -> None:
        """Show a warning next to the resource, or a progress line that the next one replaces."""
        if self._stub is None:
            return
        severity = engine_pb2.WARNING if warning else engine_pb2.INFO
        request = engine_pb2.LogRequest(
            urn=urn, streamId=stream, message=text, severity=severity, ephemeral=not warning
        )
        try:
            self._stub.Log(request, timeout=_LOG_SECONDS)
        except grpc.RpcError:
            self._stub = None  # the engine has exited, which must not make the command fail


@dataclass(frozen=True)
class Operation:
    """A create, read, update or delete operation on a resource."""

    urn: str
    seconds: float
    """Time limit (customTimeouts), or 0 for no limit."""
    stream: int
    log: EngineLog
    stop: Stop

    @property
    def name(self) -> str:
        return self.urn.rpartition("::")[2]

    def status(self, text: str) -> None:
        """Show a progress line next to the resource, until the next one replaces it."""
        self.log.send(self.urn, self.stream, text, warning=False)

    def warning(self, text: str) -> None:
        """Show a warning next to the resource."""
        self.log.send(self.urn, self.stream, text, warning=True)


class Plugin(provider_pb2_grpc.ResourceProviderServicer):
    """A plugin without resources. Pulumi's provider.proto documents the methods."""

    def __init__(self, version: str, log: EngineLog, stop: Stop) -> None:
        self._version = version
        self._log = log
        self._stop = stop
        self._streams = itertools.count(1)

    def Handshake(self, request: Any, context: Any) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    def Attach(self, request: plugin_pb2.PluginAttach, context: Any) -> empty_pb2.Empty:
        self._log.attach(request.address)
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self._version)

    def CheckConfig(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        self._stop.set()
        return empty_pb2.Empty()

    def close(self) -> None:
        """End the plugin's operations, processes and threads. The engine waits 5 s for a plugin to exit."""
        self._stop.set()

    def _operation(self, urn: str, seconds: float = 0) -> Operation:
        return Operation(urn, seconds, next(self._streams), self._log, self._stop)

    def _answer(self, context: Any, run: Callable[[], _T]) -> _T:
        try:
            return run()
        except (ResourceError, PlatformError, Stopped, OSError) as problem:
            refuse(context, str(problem))


def token_of(urn: str) -> str:
    """Return a URN's resource type."""
    return urn.split("::")[2].rpartition("$")[2]


def stack_of(urn: str) -> str:
    """Return a URN's stack ("urn:pulumi:STACK::project::...")."""
    return urn.split("::", maxsplit=1)[0].rpartition(":")[2]


def check_response(inputs: Properties, failures: Iterable[Failure]) -> provider_pb2.CheckResponse:
    listed = [provider_pb2.CheckFailure(property=found.property, reason=found.reason) for found in failures]
    return provider_pb2.CheckResponse(inputs=to_struct(inputs), failures=listed)


def refuse(context: Any, message: str) -> NoReturn:
    """End the call with an error message for the user."""
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("abort raises")


def diff_response(found: dict[str, Change], replaces: Callable[[str], bool]) -> provider_pb2.DiffResponse:
    """Return a Diff response. `replaces` tells whether a change at the given path replaces the resource."""

    def described(path: str, change: Change) -> provider_pb2.PropertyDiff:
        kind = f"{change}_REPLACE" if replaces(path) else change
        return provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True)

    response = provider_pb2.DiffResponse
    return response(
        changes=response.DIFF_SOME if found else response.DIFF_NONE,
        replaces=[path for path in found if replaces(path)],
        diffs=sorted({path.partition(".")[0].partition("[")[0] for path in found}),
        detailedDiff={path: described(path, change) for path, change in found.items()},
        hasDetailedDiff=True,
    )


def serve(build: Callable[[EngineLog, Stop], Plugin], arguments: list[str]) -> NoReturn:
    """Print the port on standard output and serve the engine whose address is the last argument.

    The process exits after SIGINT, SIGTERM or SIGHUP, or when the engine exits.
    """
    address = arguments[-1] if arguments and not arguments[-1].startswith("-") else ""
    plugin = build(EngineLog(address), Stop())
    # The interpreter writes to the pipe as soon as a signal arrives. A handler can be too late: if the signal arrives
    # just before `poll` blocks, or in another thread, the handler runs only after `poll` has returned.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    limits = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    _wait_for_the_end(reader)
    plugin.close()
    server.stop(_ANSWER_SECONDS).wait()
    os._exit(0)  # threads may still wait for the engine


def _wait_for_the_end(signals: int) -> None:
    """Wait for a signal, or until the engine exits and thus closes the plugin's standard input (ExecPlugin in
    pulumi/pulumi:sdk/go/common/resource/plugin/plugin.go).
    """
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    try:
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            poll.register(0, 0)  # POLLHUP is always reported
    except OSError:
        pass  # standard input is closed
    poll.poll()
