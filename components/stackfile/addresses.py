"""Types for IPv4 addresses and networks in stack files. The types reject integers, which `ipaddress` would accept."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

_PRIVATE = tuple(IPv4Network(cidr) for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def _require_text(value: Any) -> Any:
    if isinstance(value, str | IPv4Address | IPv4Network):
        return value
    raise PydanticCustomError("ip_v4_network", "must be text")


IpAddress = Annotated[
    IPv4Address, BeforeValidator(_require_text), Field(description="must be an IPv4 address", examples=["10.0.0.10"])
]
Cidr = Annotated[
    IPv4Network,
    BeforeValidator(_require_text),
    Field(description="must be an IPv4 network in CIDR form without host bits", examples=["10.77.0.0/20"]),
]


def is_private(network: IPv4Network) -> bool:
    """Return whether the network is in an RFC 1918 private range. Clouds reserve these ranges for customer networks."""
    return any(network.subnet_of(private) for private in _PRIVATE)
