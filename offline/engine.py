"""Messages from a plugin to the engine's log."""

from __future__ import annotations

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

_SECONDS = 10.0


class EngineLog:
    """Sends messages about resources to the engine at `address`. Without an engine, messages are discarded.

    All messages of one operation have the same `stream`.
    """

    def __init__(self, address: str | None) -> None:
        self._stub: engine_pb2_grpc.EngineStub | None = None
        if address:
            self.attach(address)

    def attach(self, address: str) -> None:
        """Send later messages to this engine."""
        self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))

    def status(self, urn: str, stream: int, text: str) -> None:
        """Show a progress line with the resource. The next line replaces it."""
        self._send(urn, stream, text, engine_pb2.INFO, ephemeral=True)

    def warning(self, urn: str, stream: int, text: str) -> None:
        """Show a warning with the resource."""
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
            self._stub = None  # the engine has exited; a log message must not make the command fail
