"""What a stand-in plugin is made of: one object per resource type, and the operation it is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from offline.engine import Log
from offline.stopping import Stop
from offline.values import Properties


class ResourceError(Exception):
    """An operation that failed; the message is what the user reads beside the resource."""


@dataclass(frozen=True)
class Failure:
    """One broken rule of a resource's inputs, at a property path."""

    property: str
    reason: str


@dataclass(frozen=True)
class Operation:
    """One create, update, delete or invoke under way."""

    urn: str
    name: str
    seconds: float
    """The longest it may take; 0 for no limit (Pulumi's customTimeouts)."""
    stream: int
    log: Log
    stop: Stop

    def status(self, text: str) -> None:
        """Show one line of progress beside the resource."""
        self.log.status(self.urn, self.stream, text)

    def warning(self, text: str) -> None:
        """Show a warning that stays."""
        self.log.warning(self.urn, self.stream, text)


class Resource(Protocol):
    """One resource type. Every method may raise ResourceError; a preview must change and run nothing."""

    def check(self, inputs: Properties) -> tuple[Properties, Sequence[Failure]]:
        """Return the inputs with defaults and secret marks, and every broken rule."""

    def replaces(self, path: str) -> bool:
        """Tell whether a change at this path needs a new resource."""

    def preview(self, inputs: Properties) -> Properties:
        """Return the outputs that a create or update would have, unknown where only running tells."""

    def create(self, operation: Operation, inputs: Properties) -> Properties:
        """Make it and return its outputs."""

    def update(self, operation: Operation, state: Properties, inputs: Properties) -> Properties:
        """Change it from `state`, its last outputs, and return the new ones."""

    def delete(self, operation: Operation, state: Properties) -> None:
        """Take it away."""

    def schema(self) -> Mapping[str, object]:
        """Describe it as an entry of the plugin's Pulumi schema."""


class Function(Protocol):
    """One function of a plugin."""

    def invoke(self, operation: Operation, arguments: Properties) -> Properties:
        """Return its result. Raises ResourceError."""
