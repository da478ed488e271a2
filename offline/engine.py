"""The engine's log, as a plugin reaches it."""

from __future__ import annotations

from typing import Protocol

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

_SECONDS = 10.0


class Log(Protocol):
    """Where a resource's words go. `stream` keeps the lines of one operation together."""

    def status(self, urn: str, stream: int, text: str) -> None:
        """Show progress: one line beside the resource, replaced by the next."""

    def warning(self, urn: str, stream: int, text: str) -> None:
        """Show a warning that stays."""


class EngineLog:
    """Sends words to the engine at `address`; without one, or once the engine is gone, they are dropped."""

    def __init__(self, address: str | None) -> None:
        self._stub: engine_pb2_grpc.EngineStub | None = None
        if address:
            self.attach(address)

    def attach(self, address: str) -> None:
        """Talk to this engine from now on."""
        self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))

    def status(self, urn: str, stream: int, text: str) -> None:
        """See Log."""
        self._send(urn, stream, text, engine_pb2.INFO, ephemeral=True)

    def warning(self, urn: str, stream: int, text: str) -> None:
        """See Log."""
        self._send(urn, stream, text, engine_pb2.WARNING, ephemeral=False)

    def _send(
        self, urn: str, stream: int, text: str, severity: engine_pb2.LogSeverity.ValueType, *, ephemeral: bool
    ) -> None:
        if self._stub is None:
            return
        request = engine_pb2.LogRequest(urn=urn, streamId=stream, message=text, severity=severity, ephemeral=ephemeral)
        try:
            self._stub.Log(request, timeout=_SECONDS)
        except grpc.RpcError:
            self._stub = None  # an engine that does not listen is on its way out; the command's result matters more
