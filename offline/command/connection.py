"""The `connection` property of a remote command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offline.resources import ResourceError
from offline.values import Value, reveal


@dataclass(frozen=True)
class Endpoint:
    """An SSH server and a login. An empty string or 0 seconds means that the value is not set."""

    path: str
    """Property path of this object, for error messages."""
    host: str
    user: str
    port: int
    private_key: str = field(repr=False)
    agent: str
    """Path of the SSH agent's socket."""
    host_key: str
    dial_error_limit: int
    per_dial_seconds: int


@dataclass(frozen=True)
class Connection:
    """An SSH server, reached directly or through a proxy. Commands with equal connections share one login."""

    endpoint: Endpoint
    proxy: Endpoint | None

    @property
    def dial_error_limit(self) -> int:
        """Maximum number of failed attempts, or -1 for no limit."""
        limits = [hop.dial_error_limit for hop in (self.endpoint, self.proxy) if hop]
        return -1 if min(limits) < 0 else sum(limits)

    def __str__(self) -> str:
        return f"{self.endpoint.user}@{self.endpoint.host} port {self.endpoint.port}"


def connection(value: Value) -> Connection:
    """Return the connection described by a checked `connection` property. Raises ResourceError if it has no host."""
    plain = reveal(value)
    if not isinstance(plain, dict):
        raise ResourceError("connection: must be an object with at least host")
    proxy = plain.get("proxy")
    hop = _endpoint(proxy, "connection.proxy") if isinstance(proxy, dict) else None
    return Connection(_endpoint(plain, "connection"), hop)


def _endpoint(plain: Mapping[str, Value], path: str) -> Endpoint:
    # `check` has verified the types.
    given: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    return Endpoint(
        path=path,
        host=given.get("host", ""),
        user=given.get("user") or "root",
        port=int(given.get("port", 22)),
        private_key=given.get("privateKey", ""),
        agent=given.get("agentSocketPath", ""),
        host_key=given.get("hostKey", ""),
        dial_error_limit=int(given.get("dialErrorLimit", 10)),
        per_dial_seconds=int(given.get("perDialTimeout", 15)),
    )
