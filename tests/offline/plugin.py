"""The command plugin in the test process, and an engine that sends requests and stores log messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, provider_pb2_grpc

from offline.command.plugin import CommandProvider
from offline.protocol import EngineLog, Stop
from offline.values import MARK, SECRET, Properties, Value, from_struct, to_struct

REMOTE = "command:remote:Command"
_SECONDS = 20


def urn(token: str) -> str:
    return f"urn:pulumi:stack::project::trainyard:index:Part${token}::it"


def hidden(value: Value) -> Value:
    return {MARK: SECRET, "value": value}


class Engine(engine_pb2_grpc.EngineServicer):
    def __init__(self) -> None:
        self.requests: list[engine_pb2.LogRequest] = []
        self._changed = Condition()

    def Log(self, request: engine_pb2.LogRequest, context: Any) -> empty_pb2.Empty:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        return empty_pb2.Empty()

    @property
    def lines(self) -> list[str]:
        return [request.message for request in self.requests]

    def wait_for(self, line: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(line in found for found in self.lines), _SECONDS), self.lines


class Plugin:
    """Sends requests to a plugin, with properties as Python values."""

    def __init__(self, port: int, engine: Engine) -> None:
        self.stub = provider_pb2_grpc.ResourceProviderStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self.engine = engine

    def check(self, token: str, inputs: Mapping[str, Value]) -> tuple[Properties, dict[str, str]]:
        """Return the checked inputs, and the reason for each failure by property."""
        request = provider_pb2.CheckRequest(urn=urn(token), news=to_struct(inputs))
        answer = self.stub.Check(request, timeout=_SECONDS)
        return from_struct(answer.inputs), {failure.property: failure.reason for failure in answer.failures}

    def diff(self, token: str, old: Mapping[str, Value], new: Mapping[str, Value]) -> provider_pb2.DiffResponse:
        request = provider_pb2.DiffRequest(
            id="it1", urn=urn(token), olds=to_struct(old), old_inputs=to_struct(old), news=to_struct(new)
        )
        answer: provider_pb2.DiffResponse = self.stub.Diff(request, timeout=_SECONDS)
        return answer

    def create(
        self, token: str, inputs: Mapping[str, Value], *, preview: bool = False, timeout: float = 0
    ) -> tuple[str, Properties]:
        request = provider_pb2.CreateRequest(
            urn=urn(token), properties=to_struct(inputs), preview=preview, timeout=timeout
        )
        answer = self.stub.Create(request, timeout=_SECONDS)
        return answer.id, from_struct(answer.properties)

    def update(self, token: str, state: Properties, inputs: Properties, *, preview: bool = False) -> Properties:
        request = provider_pb2.UpdateRequest(
            id="it1", urn=urn(token), olds=to_struct(state), news=to_struct(inputs), preview=preview
        )
        return from_struct(self.stub.Update(request, timeout=_SECONDS).properties)

    def delete(self, token: str, state: Properties) -> None:
        request = provider_pb2.DeleteRequest(id="it1", urn=urn(token), properties=to_struct(state))
        self.stub.Delete(request, timeout=_SECONDS)

    def cancel(self) -> None:
        """Cancel running operations, as the engine does after Ctrl-C."""
        self.stub.Cancel(empty_pb2.Empty(), timeout=_SECONDS)

    def stdout(self, inputs: Mapping[str, Value]) -> Value:
        return self.create(REMOTE, inputs)[1]["stdout"]

    def create_failure(self, inputs: Mapping[str, Value]) -> str:
        """Create a remote command, which must fail, and return the error message."""
        return self.failure(lambda: self.create(REMOTE, inputs))

    def failure(self, call: Any) -> str:
        """Return the error message from a call, which must fail."""
        with pytest.raises(grpc.RpcError) as caught:
            call()
        problem: Any = caught.value
        return str(problem.details())


@contextmanager
def serving() -> Iterator[Plugin]:
    engine = Engine()
    engine_server, plugin_server = (grpc.server(ThreadPoolExecutor(32)) for _ in range(2))
    engine_pb2_grpc.add_EngineServicer_to_server(engine, engine_server)
    engine_port = engine_server.add_insecure_port("127.0.0.1:0")
    engine_server.start()
    provider = CommandProvider(EngineLog(f"127.0.0.1:{engine_port}"), Stop())
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, plugin_server)
    port = plugin_server.add_insecure_port("127.0.0.1:0")
    plugin_server.start()
    try:
        yield Plugin(port, engine)
    finally:
        provider.close()
        plugin_server.stop(None)
        engine_server.stop(None)
