"""Fixed private addresses, judged as the clouds do: inside the subnet, not one of its reserved ones, nobody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_network

from offline.values import Properties, Value


@dataclass(frozen=True)
class Wish:
    """An interface's wish for one address of one subnet."""

    subnet: str
    """As the program wrote it: an id or a link."""
    address: str


def azure_wishes(inputs: Properties) -> Iterator[Wish]:
    """Yield the addresses that a network interface asks for."""
    for item in _objects(inputs.get("ipConfigurations")):
        subnet, address = item.get("subnet"), item.get("privateIPAddress")
        if isinstance(subnet, dict) and isinstance(subnet.get("id"), str) and isinstance(address, str):
            yield Wish(str(subnet["id"]), address)


def gcp_wishes(inputs: Properties) -> Iterator[Wish]:
    """Yield the addresses that an instance asks for."""
    for item in _objects(inputs.get("networkInterfaces")):
        subnet, address = item.get("subnetwork"), item.get("networkIp")
        if isinstance(subnet, str) and isinstance(address, str):
            yield Wish(subnet, address)


def azure_ranges(inputs: Properties) -> list[str]:
    """Return a subnet's ranges."""
    several = inputs.get("addressPrefixes")
    found = several if isinstance(several, list) else [inputs.get("addressPrefix")]
    return [item for item in found if isinstance(item, str)]


def gcp_ranges(inputs: Properties) -> list[str]:
    """Return a subnetwork's primary range."""
    found = inputs.get("ipCidrRange")
    return [found] if isinstance(found, str) else []


def problem(wish: Wish, ranges: Iterable[str], reserved: tuple[int, int], taken: Iterable[str]) -> str:
    """Return why the cloud refuses the address, "" where it does not. `reserved`: how many at each end it keeps."""
    try:
        networks = [network for text in ranges if isinstance(network := ip_network(text, strict=False), IPv4Network)]
        address = IPv4Address(wish.address)
    except ValueError as error:
        return f"{error}. Fix: write an IPv4 address, and ranges like 10.0.0.0/24"
    home = next((network for network in networks if address in network), None)
    if networks and home is None:
        return f"{address} is not in the subnet's range {', '.join(map(str, networks))}. Fix: choose one inside"
    if home is not None:
        first, last = home[reserved[0]], home[-1 - reserved[1]]
        if not first <= address <= last:
            return f"{address} is reserved by the cloud. Fix: choose one from {first} to {last}"
    if wish.address in taken:
        return f"{address} is in use. Fix: choose another, or delete what has it"
    return ""


def _objects(items: Value) -> list[Properties]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
