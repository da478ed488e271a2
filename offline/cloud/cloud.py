"""The base class for the simulated clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from offline.cloud.addressing import AddressRequest
from offline.cloud.rules import Rules
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import World
from offline.values import Properties

Function: TypeAlias = "Callable[[World, Properties], Properties]"
"""Function that returns the result of a data source. Raises ResourceError."""


class Cloud(Protocol):
    """A simulated cloud. In every method, secrets in `inputs` are plain values."""

    package: str
    """The plugin's name: azure-native or gcp."""
    sdk: Sdk
    rules: Rules
    functions: Mapping[str, Function]
    reserved_addresses: tuple[int, int]
    """Number of reserved addresses at the start and at the end of a subnet."""

    def configure(self, config: Properties) -> None:
        """Set the provider's configuration, for example project, region and location."""

    def name_property(self, described: Described) -> str:
        """Return the property that names a resource of the type, or ""."""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        """Return a name for a resource that has no name. `suffix` is seven random hexadecimal digits."""

    def checked(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs with the values that the plugin adds from its configuration."""
        return inputs

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs as the cloud's API reports them. A diff compares the new inputs with the result."""
        return inputs

    def identity(self, described: Described, inputs: Properties) -> str:
        """Return the resource's id."""

    def given(self, described: Described, inputs: Properties) -> Properties:
        """Return the outputs that depend only on the inputs and the configuration. They are known in a preview."""

    def computed(self, described: Described, identity: str, outputs: Properties, world: World) -> Properties:
        """Return `outputs` with the values that the cloud chooses."""

    def refers(self, text: str) -> str:
        """Return the id that a text refers to, or "" if the text does not refer to a simulated resource."""

    def refused(self, path: str) -> str:
        """Return the cloud's error message for a forbidden property change."""

    def refused_location(self, inputs: Properties) -> str:
        """Return the cloud's error message for a region or zone that does not exist, or ""."""

    def requested_addresses(self, token: str, inputs: Properties) -> Iterable[AddressRequest]:
        """Yield the fixed private addresses that a resource requests."""

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """Return a subnet's address ranges, or an empty list if the resource is not a subnet."""
