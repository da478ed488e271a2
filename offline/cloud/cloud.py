"""The interface of a simulated cloud, which Azure and Google Cloud implement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any, Protocol, TypeAlias

from offline.boot.description import CloudMachine
from offline.cloud.rules import Rules
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.values import Properties
from trainyard.project import installed
from trainyard.strict_yaml import load_own

Function: TypeAlias = "Callable[[World, Properties], Properties]"
"""The implementation of a data source, which returns the result or raises ResourceError."""


@dataclass(frozen=True)
class AddressRequest:
    """A fixed private address that a network interface requests. `subnet` is the subnet's ID or self link."""

    subnet: str
    address: str


class Cloud(Protocol):
    """A simulated cloud. All methods receive `inputs` without secret marks.

    The `refused_` methods return the cloud's error message, or "" if the cloud accepts the request.
    """

    package: str
    """The plugin's name, azure-native or gcp."""
    sdk: Sdk
    rules: Rules
    functions: Mapping[str, Function]
    """Mapping from a data source's token to its implementation."""
    reserved_addresses: tuple[int, int]
    """How many addresses the cloud reserves at the start and at the end of a subnet."""

    def configure(self, config: Properties) -> None:
        """Store the provider's configuration, for example its project and region."""

    def name_property(self, described: Described) -> str:
        """Return the property that contains a resource's name, or "" if the type has none."""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        """Return a name for an unnamed resource. `suffix` is seven random hexadecimal digits."""

    def checked(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs, completed with values from the plugin's configuration."""
        return inputs

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs as the cloud's API reports them. A diff compares new inputs with these."""
        return inputs

    def identity(self, described: Described, inputs: Properties) -> str:
        """Return the ID of the resource that these inputs create."""

    def given(self, described: Described, inputs: Properties) -> Properties:
        """Return the outputs that follow from the inputs and the configuration, so that a preview knows them."""

    def computed(self, described: Described, identity: str, outputs: Properties) -> Properties:
        """Return `outputs`, completed with the values that the cloud assigns."""

    filters: frozenset[str] = frozenset()
    """Types of resources with firewall rules."""

    def machine(self, record: Record, world: World) -> CloudMachine | None:
        """Return the virtual machine that a resource describes, or None if it is no virtual machine."""
        return None

    def refers(self, text: str) -> str:
        """Return the ID of the simulated resource to which `text` refers, or "" if there is none."""

    def refused_change(self, path: str) -> str:
        """Refuse to change the property at this path."""

    def refused_location(self, inputs: Properties) -> str:
        """Refuse a region or zone that does not exist."""

    def refused_now(self, record: Record, world: World) -> str:
        """Refuse to create, update or delete a resource because of another resource's state."""
        return ""

    def requested_addresses(self, token: str, inputs: Properties) -> Iterable[AddressRequest]:
        """Yield the fixed private addresses that a resource requests."""

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """Return a subnet's address ranges, or an empty list for any other resource."""


def refused_address(text: str, ranges: Iterable[str], reserved: tuple[int, int], *, taken: bool) -> str:
    """Return why the cloud refuses an address in a subnet with these address ranges, or "" if it accepts the address.

    `reserved` is Cloud.reserved_addresses, and `taken` means that another interface has the address.
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
    """Return the value of `key` in a file in components/catalog."""
    found: Mapping[str, Any] = load_own(installed(f"components/catalog/{file}").read_text())[key]
    return found
