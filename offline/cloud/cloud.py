"""What every simulated cloud must tell of its own resource types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from offline.cloud.addressing import Wish
from offline.cloud.rules import Rules
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import World
from offline.values import Properties

Function: TypeAlias = "Callable[[World, Properties], Properties]"
"""Answers one data source from its arguments. Raises ResourceError."""


class Cloud(Protocol):
    """One cloud. `inputs` are always without secret marks."""

    package: str
    """The plugin's name: azure-native or gcp."""
    sdk: Sdk
    rules: Rules
    functions: Mapping[str, Function]
    reserved_addresses: tuple[int, int]
    """How many addresses at each end of a subnet nobody can have."""

    def configure(self, config: Properties) -> None:
        """Take the provider's configuration (project, region, location...)."""

    def name_property(self, described: Described) -> str:
        """Return the property that names a resource of the type; "" where it has none."""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        """Return a name for a resource that was given none. `suffix` is seven random hexadecimal digits."""

    def checked(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs with what the plugin adds to them from its configuration."""

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs in the form in which the cloud's API reports them: a plan compares with that."""

    def identity(self, described: Described, inputs: Properties) -> str:
        """Return the id that the cloud would give."""

    def given(self, described: Described, inputs: Properties) -> Properties:
        """Return what follows from the inputs and the configuration alone, so that a preview knows it too."""

    def computed(self, described: Described, identity: str, outputs: Properties, world: World) -> Properties:
        """Return `outputs` with what only the cloud knows."""

    def refers(self, text: str) -> str:
        """Return the id that a text refers to, "" where it refers to no resource of this cloud's simulation."""

    def refused(self, path: str) -> str:
        """Return the cloud's words for a change that it does not allow."""

    def misplaced(self, inputs: Properties) -> str:
        """Return the cloud's refusal of a region or zone that it does not have, or ""."""

    def wishes(self, token: str, inputs: Properties) -> Sequence[Wish]:
        """Return the fixed private addresses that a resource asks for."""

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """Return a subnet's address ranges, none where the resource is no subnet."""
