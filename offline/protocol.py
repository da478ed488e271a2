"""The part of Pulumi's provider protocol that is shared by all plugins in this project."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from offline.changes import Change
from offline.engine import EngineLog
from offline.resources import Failure, Operation, ResourceError
from offline.stopping import Stop, Stopped

_T = TypeVar("_T")


class Plugin(provider_pb2_grpc.ResourceProviderServicer):
    """A plugin without resources. The methods are defined in Pulumi's provider.proto."""

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
        self._stop.request()
        return empty_pb2.Empty()

    def _operation(self, urn: str, seconds: float) -> Operation:
        name = urn.rpartition("::")[2]
        return Operation(urn, name, seconds, next(self._streams), self._log, self._stop)

    def _answer(self, context: Any, run: Callable[[], _T]) -> _T:
        try:
            return run()
        except (ResourceError, Stopped, OSError) as problem:
            refuse(context, str(problem))


def token_of(urn: str) -> str:
    """Return the resource type in a URN."""
    return urn.split("::")[2].rpartition("$")[2]


def stack_of(urn: str) -> str:
    """Return the stack in a URN ("urn:pulumi:STACK::project::...")."""
    return urn.split("::", maxsplit=1)[0].rpartition(":")[2]


def check_failures(failures: Iterable[Failure]) -> list[provider_pb2.CheckFailure]:
    """Return the problems in the format of a Check response."""
    return [provider_pb2.CheckFailure(property=found.property, reason=found.reason) for found in failures]


def refuse(context: Any, message: str) -> NoReturn:
    """End the call with a message for the user."""
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("abort raises")


def diff_response(found: dict[str, Change], replaces: Callable[[str], bool]) -> provider_pb2.DiffResponse:
    """Return a Diff response. `replaces` returns whether a change at a path replaces the resource."""
    response = provider_pb2.DiffResponse
    return response(
        changes=response.DIFF_SOME if found else response.DIFF_NONE,
        replaces=[path for path in found if replaces(path)],
        diffs=sorted({path.partition(".")[0].partition("[")[0] for path in found}),
        detailedDiff={path: _property_diff(change, replaces(path)) for path, change in found.items()},
        hasDetailedDiff=True,
    )


def _property_diff(change: Change, replaces: bool) -> provider_pb2.PropertyDiff:
    kind = f"{change.value}_REPLACE" if replaces else change.value
    return provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True)
