"""The engine's side of a stand-in plugin: Pulumi's provider protocol over a table of resource types."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from offline.changes import Change, changes
from offline.engine import EngineLog
from offline.resources import Function, Operation, Resource, ResourceError
from offline.stopping import Stop, Stopped
from offline.values import from_struct, to_struct

_T = TypeVar("_T")
_ID_BYTES = 4
"""Random part of a resource's id: eight hex digits, like the official plugins'."""


@dataclass(frozen=True)
class Package:
    """What a plugin stands in for: a package's name, the SDK's version, and its types and functions by token."""

    name: str
    version: str
    resources: Mapping[str, Resource]
    functions: Mapping[str, Function]


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Answers the engine for one package. Its methods are those of Pulumi's provider.proto, and explained there."""

    def __init__(self, package: Package, log: EngineLog, stop: Stop) -> None:
        self._package = package
        self._log = log
        self._stop = stop
        self._streams = itertools.count(1)

    def Handshake(self, request: Any, context: Any) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    def Attach(self, request: plugin_pb2.PluginAttach, context: Any) -> empty_pb2.Empty:
        self._log.attach(request.address)
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self._package.version)

    def GetSchema(self, request: Any, context: Any) -> provider_pb2.GetSchemaResponse:
        resources = {token: resource.schema() for token, resource in self._package.resources.items()}
        schema = {"name": self._package.name, "version": self._package.version, "resources": resources}
        return provider_pb2.GetSchemaResponse(schema=json.dumps(schema))

    def CheckConfig(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        self._stop.request()
        return empty_pb2.Empty()

    def Check(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        inputs, failures = self._resource(request.urn, context).check(from_struct(request.news))
        return provider_pb2.CheckResponse(
            inputs=to_struct(inputs),
            failures=[provider_pb2.CheckFailure(property=found.property, reason=found.reason) for found in failures],
        )

    def Diff(self, request: provider_pb2.DiffRequest, context: Any) -> provider_pb2.DiffResponse:
        resource = self._resource(request.urn, context)
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        for name in request.ignoreChanges:
            if name in old:
                new[name] = old[name]
        found = changes(old, new)
        response = provider_pb2.DiffResponse
        return response(
            changes=response.DIFF_SOME if found else response.DIFF_NONE,
            replaces=[path for path in found if resource.replaces(path)],
            diffs=sorted({path.partition(".")[0].partition("[")[0] for path in found}),
            detailedDiff={path: _property_diff(change, resource.replaces(path)) for path, change in found.items()},
            hasDetailedDiff=True,
        )

    def Create(self, request: provider_pb2.CreateRequest, context: Any) -> provider_pb2.CreateResponse:
        resource, inputs = self._resource(request.urn, context), from_struct(request.properties)
        if request.preview:
            return provider_pb2.CreateResponse(properties=to_struct(resource.preview(inputs)))
        operation = self._operation(request.urn, request.timeout)
        outputs = self._answer(context, lambda: resource.create(operation, inputs))
        made = f"{operation.name}{secrets.token_hex(_ID_BYTES)}"
        return provider_pb2.CreateResponse(id=made, properties=to_struct(outputs))

    def Read(self, request: provider_pb2.ReadRequest, context: Any) -> provider_pb2.ReadResponse:
        # A command leaves nothing that could be looked at, so what the state says stands.
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def Update(self, request: provider_pb2.UpdateRequest, context: Any) -> provider_pb2.UpdateResponse:
        resource = self._resource(request.urn, context)
        state, inputs = from_struct(request.olds), from_struct(request.news)
        for name in request.ignoreChanges:
            if name in state:
                inputs[name] = state[name]
        if request.preview:
            return provider_pb2.UpdateResponse(properties=to_struct(resource.preview(inputs)))
        operation = self._operation(request.urn, request.timeout)
        outputs = self._answer(context, lambda: resource.update(operation, state, inputs))
        return provider_pb2.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: provider_pb2.DeleteRequest, context: Any) -> empty_pb2.Empty:
        resource, state = self._resource(request.urn, context), from_struct(request.properties)
        operation = self._operation(request.urn, request.timeout)
        self._answer(context, lambda: resource.delete(operation, state))
        return empty_pb2.Empty()

    def Invoke(self, request: provider_pb2.InvokeRequest, context: Any) -> provider_pb2.InvokeResponse:
        function = self._package.functions.get(request.tok)
        if function is None:
            _refuse(context, self._unsupported(request.tok))
        arguments, operation = from_struct(request.args), self._operation("", 0)
        result = self._answer(context, lambda: function.invoke(operation, arguments))
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(result))  # the field's name is a word of Python
        return response

    def _resource(self, urn: str, context: Any) -> Resource:
        token = urn.split("::")[2].rpartition("$")[2]
        found = self._package.resources.get(token)
        if found is None:
            _refuse(context, self._unsupported(token))
        return found

    def _unsupported(self, token: str) -> str:
        known = ", ".join(sorted([*self._package.resources, *self._package.functions]))
        return (
            f"{token}: the stand-in for pulumi-{self._package.name} knows only {known}. Fix: install the official one."
        )

    def _operation(self, urn: str, seconds: float) -> Operation:
        name = urn.rpartition("::")[2]
        return Operation(urn, name, seconds, next(self._streams), self._log, self._stop)

    def _answer(self, context: Any, run: Callable[[], _T]) -> _T:
        try:
            return run()
        except (ResourceError, Stopped, OSError) as problem:
            _refuse(context, str(problem))


def _refuse(context: Any, message: str) -> NoReturn:
    """End the call with a message for the user."""
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("abort raises")


def _property_diff(change: Change, replaces: bool) -> provider_pb2.PropertyDiff:
    kind = f"{change.value}_REPLACE" if replaces else change.value
    return provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True)
