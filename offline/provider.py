"""The engine's side of a stand-in plugin that knows its resource types by a table."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from offline.changes import changes
from offline.engine import EngineLog
from offline.protocol import Plugin, diff_response, refuse, token_of
from offline.resources import Function, Resource
from offline.stopping import Stop
from offline.values import from_struct, to_struct

_ID_BYTES = 4
"""Random part of a resource's id: eight hex digits, like the official plugins'."""


@dataclass(frozen=True)
class Package:
    """What a plugin stands in for: a package's name, the SDK's version, and its types and functions by token."""

    name: str
    version: str
    resources: Mapping[str, Resource]
    functions: Mapping[str, Function]


class Provider(Plugin):
    """Answers the engine for one package."""

    def __init__(self, package: Package, log: EngineLog, stop: Stop) -> None:
        super().__init__(package.version, log, stop)
        self._package = package

    def GetSchema(self, request: Any, context: Any) -> provider_pb2.GetSchemaResponse:
        resources = {token: resource.schema() for token, resource in self._package.resources.items()}
        schema = {"name": self._package.name, "version": self._package.version, "resources": resources}
        return provider_pb2.GetSchemaResponse(schema=json.dumps(schema))

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
        return diff_response(found, resource.replaces)

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
            refuse(context, self._unsupported(request.tok))
        arguments, operation = from_struct(request.args), self._operation("", 0)
        result = self._answer(context, lambda: function.invoke(operation, arguments))
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(result))  # the field's name is a word of Python
        return response

    def _resource(self, urn: str, context: Any) -> Resource:
        token = token_of(urn)
        found = self._package.resources.get(token)
        if found is None:
            refuse(context, self._unsupported(token))
        return found

    def _unsupported(self, token: str) -> str:
        known = ", ".join(sorted([*self._package.resources, *self._package.functions]))
        return (
            f"{token}: the stand-in for pulumi-{self._package.name} knows only {known}. Fix: install the official one."
        )
