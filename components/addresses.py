"""IPv4 addresses and networks as a person writes them: text, since a number would be taken for an address, too."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

_PRIVATE = tuple(IPv4Network(cidr) for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def _written(value: Any) -> Any:
    if isinstance(value, str | IPv4Address | IPv4Network):
        return value
    raise PydanticCustomError("ip_v4_network", "must be text")


IpAddress = Annotated[
    IPv4Address, BeforeValidator(_written), Field(description="must be an IPv4 address", examples=["10.0.0.10"])
]
Cidr = Annotated[
    IPv4Network,
    BeforeValidator(_written),
    Field(
        description="must be an IPv4 network in CIDR form that begins at its own first address",
        examples=["10.77.0.0/20"],
    ),
]


def is_private(network: IPv4Network) -> bool:
    """Say whether all of it lies in one of the ranges of RFC 1918, which no cloud uses for itself."""
    return any(network.subnet_of(private) for private in _PRIVATE)
