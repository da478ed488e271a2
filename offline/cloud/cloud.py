"""The interface of a simulated cloud: what differs between Azure and Google Cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any, Protocol, TypeAlias

from offline.cloud.rules import Rules
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.values import Properties
from trainyard.checkout import ROOT
from trainyard.strict_yaml import load_own

Function: TypeAlias = "Callable[[World, Properties], Properties]"
"""Function that returns the result of a data source. Raises ResourceError."""


@dataclass(frozen=True)
class AddressRequest:
    """A fixed private address that a network interface requests."""

    subnet: str
    """The subnet's id or self link."""
    address: str


class Cloud(Protocol):
    """A simulated cloud. In the `inputs` parameter of each method, secret values are plain values.

    A method that returns the cloud's error message returns "" if the cloud accepts the request.
    """

    package: str
    """The plugin's name: azure-native or gcp."""
    sdk: Sdk
    rules: Rules
    functions: Mapping[str, Function]
    """The supported data sources."""
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

    def computed(self, described: Described, identity: str, outputs: Properties) -> Properties:
        """Return `outputs`, with the values that the cloud assigns added."""

    def refers(self, text: str) -> str:
        """Return the id that a text refers to, or "" if the text does not refer to a simulated resource."""

    def refused_change(self, path: str) -> str:
        """Return the cloud's error message for a change of a property that cannot change."""

    def refused_location(self, inputs: Properties) -> str:
        """Return the cloud's error message for a region or zone that does not exist."""

    def refused_write(self, wanted: Record, before: Record | None, world: World) -> str:
        """Return the cloud's error message for a create request, or for an update request for the resource `before`."""
        return ""

    def refused_deletion(self, record: Record, world: World) -> str:
        """Return the cloud's error message for a deletion."""
        return ""

    def requested_addresses(self, token: str, inputs: Properties) -> Iterable[AddressRequest]:
        """Yield the fixed private addresses that a resource requests."""

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """Return a subnet's address ranges, or an empty list if the resource is not a subnet."""


def refused_address(text: str, ranges: Iterable[str], reserved: tuple[int, int], *, taken: bool) -> str:
    """Return the reason why the cloud refuses an address in a subnet, or "".

    `ranges` are the subnet's address ranges, `reserved` is Cloud.reserved_addresses, and `taken` is set if another
    interface has the address.
    """
    try:
        networks = [network for item in ranges if isinstance(network := ip_network(item, strict=False), IPv4Network)]
        address = IPv4Address(text)
    except ValueError as error:
        return f"{error}. Fix: write an IPv4 address, and ranges like 10.0.0.0/24"
    home = next((network for network in networks if address in network), None)
    if networks and home is None:
        return f"{address} is not in the subnet's range {', '.join(map(str, networks))}. Fix: choose an address inside"
    if home is not None:
        first, last = home[reserved[0]], home[-1 - reserved[1]]
        if not first <= address <= last:
            return f"{address} is reserved by the cloud. Fix: choose an address from {first} to {last}"
    if taken:
        return f"{address} is in use. Fix: choose a different address, or delete the resource that uses it"
    return ""


@cache
def catalog(file: str, key: str) -> Mapping[str, Any]:
    """Return facts with their sources from a file in components/catalog."""
    found: Mapping[str, Any] = load_own((ROOT / "components" / "catalog" / file).read_text())[key]
    return found
