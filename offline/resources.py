"""An operation that the engine requests, and its errors."""

from __future__ import annotations

from dataclasses import dataclass

from offline.engine import EngineLog
from offline.stopping import Stop


class ResourceError(Exception):
    """An operation failed. The engine shows the message for the resource."""


@dataclass(frozen=True)
class Failure:
    """A problem in an input. `property` is the path of the input."""

    property: str
    reason: str


@dataclass(frozen=True)
class Operation:
    """A create, read, update or delete operation on a resource."""

    urn: str
    name: str
    seconds: float
    """Time limit (customTimeouts), or 0 for none."""

    stream: int
    log: EngineLog
    stop: Stop

    def status(self, text: str) -> None:
        """Show a progress line for the resource. The next line replaces it."""
        self.log.status(self.urn, self.stream, text)

    def warning(self, text: str) -> None:
        """Show a warning for the resource."""
        self.log.warning(self.urn, self.stream, text)
