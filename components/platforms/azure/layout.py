"""Addresses of an Azure cluster beside the plan's own: subnets that services need to themselves. Pure."""

from __future__ import annotations

from ipaddress import IPv4Network

from components.spec import ClusterSpec

INFINIBAND_NETWORK = IPv4Network("172.16.0.0/16")
"""Azure's RDMA network uses it; a virtual network that overlaps it breaks InfiniBand (setup-infiniband page)."""
_SERVICE_PREFIX = 26
"""Bastion takes no smaller subnet; NetApp Files would, and gets the same."""


def bastion_subnet(services: IPv4Network) -> IPv4Network:
    """Return Bastion's part of the services' addresses."""
    return next(services.subnets(new_prefix=_SERVICE_PREFIX))


def netapp_subnet(services: IPv4Network) -> IPv4Network:
    """Return NetApp Files' part of the services' addresses, delegated to it."""
    blocks = services.subnets(new_prefix=_SERVICE_PREFIX)
    next(blocks)
    return next(blocks)


def needs_services(spec: ClusterSpec) -> bool:
    """Return whether anything of the stack stands in the services' addresses."""
    return spec.access.via == "bastion" or spec.storage.shared.kind == "azure_netapp"
