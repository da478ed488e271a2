"""The provider protocol for a simulated cloud."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from offline.cloud.azure import Azure
from offline.cloud.checking import Checker
from offline.cloud.cloud import Cloud
from offline.cloud.gcp import Gcp
from offline.cloud.making import Made, Maker, preview_outputs
from offline.cloud.sdk import Described, UnknownToken
from offline.cloud.world import World
from offline.protocol import EngineLog, Plugin, Stop, check_response, diff_response, refuse, serve, stack_of, token_of
from offline.values import Properties, changes, from_struct, is_unknown, reveal, to_struct

_SUFFIX_DIGITS = 7


class CloudProvider(Plugin):
    """A simulated cloud as a plugin. Pulumi's provider.proto documents the methods."""

    def __init__(self, cloud: Cloud, log: EngineLog, stop: Stop) -> None:
        super().__init__(cloud.sdk.version, log, stop)
        self._cloud = cloud
        self._stack = "unknown"
        self._replacing: set[str] = set()

    def Configure(self, request: provider_pb2.ConfigureRequest, context: Any) -> provider_pb2.ConfigureResponse:
        if request.urn:
            self._stack = stack_of(request.urn)
        config = {name: reveal(value) for name, value in from_struct(request.args).items()}
        self._cloud.configure({name: value for name, value in config.items() if not is_unknown(value)})
        text = f"offline: {self._cloud.package} is simulated in {self._world.folder}; no real resource is changed"
        self._operation(request.urn).warning(text)
        return super().Configure(request, context)

    def Check(self, request: provider_pb2.CheckRequest, context: Any) -> provider_pb2.CheckResponse:
        described = self._described(request.urn, context)
        inputs, old = from_struct(request.news), from_struct(request.olds)
        checker = Checker(self._cloud.sdk, described.folder, self._cloud.rules.values)
        named = self._cloud.checked(described, self._named(described, request, inputs, old))
        return check_response(named, checker.object(described.inputs, inputs))

    def Diff(self, request: provider_pb2.DiffRequest, context: Any) -> provider_pb2.DiffResponse:
        described, rule = self._described(request.urn, context), self._cloud.rules.of(token_of(request.urn))
        old, new = self._cloud.reported(described, from_struct(request.old_inputs)), from_struct(request.news)
        replacing = rule.replacing(old, new)
        self._replacing.add(request.urn)
        return diff_response(changes(old, new), replacing.__contains__)

    def Create(self, request: provider_pb2.CreateRequest, context: Any) -> provider_pb2.CreateResponse:
        described, inputs = self._described(request.urn, context), from_struct(request.properties)
        if request.preview:
            outputs = preview_outputs(self._cloud, described, inputs)
            return provider_pb2.CreateResponse(properties=to_struct(outputs))
        maker = self._maker(request.urn, request.timeout, described)
        fresh = request.urn not in self._replacing
        identity, outputs = self._answer(context, lambda: maker.create(inputs, may_adopt=fresh))
        return provider_pb2.CreateResponse(id=identity, properties=to_struct(outputs))

    def Read(self, request: provider_pb2.ReadRequest, context: Any) -> provider_pb2.ReadResponse:
        maker = self._maker(request.urn, 0, self._described(request.urn, context))
        known = Made(from_struct(request.inputs), from_struct(request.properties))
        found = self._answer(context, lambda: maker.read(request.id, known))
        if found is None:
            return provider_pb2.ReadResponse()
        inputs, outputs = to_struct(found.inputs), to_struct(found.outputs)
        return provider_pb2.ReadResponse(id=request.id, inputs=inputs, properties=outputs)

    def Update(self, request: provider_pb2.UpdateRequest, context: Any) -> provider_pb2.UpdateResponse:
        described, inputs = self._described(request.urn, context), from_struct(request.news)
        old = Made(from_struct(request.old_inputs), from_struct(request.olds))
        if request.preview:
            outputs = preview_outputs(self._cloud, described, inputs, old)
            return provider_pb2.UpdateResponse(properties=to_struct(outputs))
        maker = self._maker(request.urn, request.timeout, described)
        outputs = self._answer(context, lambda: maker.update(request.id, inputs, old))
        return provider_pb2.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: provider_pb2.DeleteRequest, context: Any) -> empty_pb2.Empty:
        maker = self._maker(request.urn, request.timeout, self._described(request.urn, context))
        self._answer(context, lambda: maker.delete(request.id))
        return empty_pb2.Empty()

    def Invoke(self, request: provider_pb2.InvokeRequest, context: Any) -> provider_pb2.InvokeResponse:
        function = self._cloud.functions.get(request.tok)
        if function is None:
            known = ", ".join(sorted(self._cloud.functions))
            fix = f"Fix: use one of {known}, or run online"
            refuse(context, f"{request.tok}: not supported by the offline {self._cloud.package}. {fix}")
        plain: Properties = {name: reveal(value) for name, value in from_struct(request.args).items()}
        result = self._answer(context, lambda: function(self._world, plain))
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(result))  # `return` is a Python keyword
        return response

    @property
    def _world(self) -> World:
        return World(self._stack)

    def _described(self, urn: str, context: Any) -> Described:
        self._stack = stack_of(urn)  # a later request for a function contains no URN
        token = token_of(urn)
        try:
            return self._cloud.sdk.describe(token)
        except UnknownToken:
            near = get_close_matches(token, self._cloud.sdk.tokens, 1)
            fix = f"use {near[0]}" if near else "use a type in the SDK"
            refuse(context, f"{token}: {self._cloud.package} {self._version} has no such type. Fix: {fix}")

    def _named(
        self, described: Described, request: provider_pb2.CheckRequest, inputs: Properties, old: Properties
    ) -> Properties:
        name = self._cloud.name_property(described)
        if not name or inputs.get(name) is not None:
            return inputs
        if old.get(name) is not None:
            return {**inputs, name: old[name]}
        seed = request.randomSeed.hex() or secrets.token_hex(_SUFFIX_DIGITS)
        logical = request.urn.rpartition("::")[2]
        return {**inputs, name: self._cloud.automatic_name(described, logical, seed[:_SUFFIX_DIGITS])}

    def _maker(self, urn: str, seconds: float, described: Described) -> Maker:
        return Maker(self._cloud, self._world, described, self._operation(urn, seconds))


CLOUDS: dict[str, Callable[[], Cloud]] = {"azure-native": Azure, "gcp": Gcp}


def main(package: str, arguments: list[str]) -> None:
    """Serve the engine that started this process. Does not return."""
    serve(lambda log, stop: CloudProvider(CLOUDS[package](), log, stop), arguments)
