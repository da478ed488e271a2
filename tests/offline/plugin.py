"""A plugin served in this process, and the engine's end of it: what Pulumi sends, and the log that it would show."""

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

from offline.command.link import Links
from offline.command.plugin import provider
from offline.engine import EngineLog
from offline.stopping import Stop
from offline.values import MARK, SECRET, Properties, Value, from_struct, to_struct

REMOTE = "command:remote:Command"
LOCAL = "command:local:Command"
COPY = "command:remote:CopyToRemote"
_SECONDS = 20


def urn(token: str) -> str:
    """Return the URN of a resource named `it`, inside a component."""
    return f"urn:pulumi:stack::project::trainyard:index:Part${token}::it"


def hidden(value: Value) -> Value:
    """Return a value as the engine marks it secret."""
    return {MARK: SECRET, "value": value}


class Engine(engine_pb2_grpc.EngineServicer):
    """Keeps what the plugin logs."""

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
        """What was logged so far."""
        return [request.message for request in self.requests]

    def wait_for(self, line: str) -> None:
        """Wait until a line that contains this was logged."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(line in found for found in self.lines), _SECONDS), self.lines


class Plugin:
    """Calls a provider over gRPC, with properties as plain Python values."""

    def __init__(self, port: int, engine: Engine) -> None:
        self.stub = provider_pb2_grpc.ResourceProviderStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self.engine = engine

    def check(self, token: str, inputs: Mapping[str, Value]) -> tuple[Properties, dict[str, str]]:
        """Return the checked inputs and the reasons by property."""
        request = provider_pb2.CheckRequest(urn=urn(token), news=to_struct(inputs))
        answer = self.stub.Check(request, timeout=_SECONDS)
        return from_struct(answer.inputs), {failure.property: failure.reason for failure in answer.failures}

    def diff(self, token: str, old: Mapping[str, Value], new: Mapping[str, Value]) -> provider_pb2.DiffResponse:
        """Ask what a change of inputs means."""
        request = provider_pb2.DiffRequest(
            id="it1", urn=urn(token), olds=to_struct(old), old_inputs=to_struct(old), news=to_struct(new)
        )
        answer: provider_pb2.DiffResponse = self.stub.Diff(request, timeout=_SECONDS)
        return answer

    def create(
        self, token: str, inputs: Mapping[str, Value], *, preview: bool = False, timeout: float = 0
    ) -> tuple[str, Properties]:
        """Return the id and the outputs."""
        request = provider_pb2.CreateRequest(
            urn=urn(token), properties=to_struct(inputs), preview=preview, timeout=timeout
        )
        answer = self.stub.Create(request, timeout=_SECONDS)
        return answer.id, from_struct(answer.properties)

    def update(self, token: str, state: Properties, inputs: Properties, *, preview: bool = False) -> Properties:
        """Return the new outputs."""
        request = provider_pb2.UpdateRequest(
            id="it1", urn=urn(token), olds=to_struct(state), news=to_struct(inputs), preview=preview
        )
        return from_struct(self.stub.Update(request, timeout=_SECONDS).properties)

    def delete(self, token: str, state: Properties) -> None:
        """Delete what has this state."""
        request = provider_pb2.DeleteRequest(id="it1", urn=urn(token), properties=to_struct(state))
        self.stub.Delete(request, timeout=_SECONDS)

    def cancel(self) -> None:
        """Do what the engine does on Ctrl-C."""
        self.stub.Cancel(empty_pb2.Empty(), timeout=_SECONDS)

    def failure(self, call: Any) -> str:
        """Return the message that a call ends with. Fails when it succeeds."""
        with pytest.raises(grpc.RpcError) as caught:
            call()
        problem: Any = caught.value
        return str(problem.details())


@contextmanager
def serving() -> Iterator[Plugin]:
    """Serve the command plugin and an engine, and end both."""
    engine, stop, links = Engine(), Stop(), Links()
    engine_server, plugin_server = (grpc.server(ThreadPoolExecutor(32)) for _ in range(2))
    engine_pb2_grpc.add_EngineServicer_to_server(engine, engine_server)
    engine_port = engine_server.add_insecure_port("127.0.0.1:0")
    engine_server.start()
    made = provider(EngineLog(f"127.0.0.1:{engine_port}"), stop, links)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(made, plugin_server)
    port = plugin_server.add_insecure_port("127.0.0.1:0")
    plugin_server.start()
    try:
        yield Plugin(port, engine)
    finally:
        stop.finish(3)
        links.close()
        plugin_server.stop(None)
        engine_server.stop(None)
