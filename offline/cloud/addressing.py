"""Check that fixed private addresses are inside the subnet, not reserved and not in use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_network


@dataclass(frozen=True)
class AddressRequest:
    """A fixed private address that a network interface requests."""

    subnet: str
    """The subnet's id or self link."""
    address: str


def problem(request: AddressRequest, ranges: Iterable[str], reserved: tuple[int, int], taken: Iterable[str]) -> str:
    """Return the reason why the cloud refuses the address, or "".

    `ranges` are the address ranges of the subnet, `reserved` contains the number of reserved addresses at the start and
    at the end of each range, and `taken` contains the addresses in use.
    """
    try:
        networks = [network for text in ranges if isinstance(network := ip_network(text, strict=False), IPv4Network)]
        address = IPv4Address(request.address)
    except ValueError as error:
        return f"{error}. Fix: write an IPv4 address, and ranges like 10.0.0.0/24"
    home = next((network for network in networks if address in network), None)
    if networks and home is None:
        return f"{address} is not in the subnet's range {', '.join(map(str, networks))}. Fix: choose an address inside"
    if home is not None:
        first, last = home[reserved[0]], home[-1 - reserved[1]]
        if not first <= address <= last:
            return f"{address} is reserved by the cloud. Fix: choose an address from {first} to {last}"
    if request.address in taken:
        return f"{address} is in use. Fix: choose a different address, or delete the resource that uses it"
    return ""
