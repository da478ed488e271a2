"""Base models and field types that all platforms' stack file models share. Does not import pulumi."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from components.catalog import Machine, machines
from trainyard.errors import RuleError

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


BAKED_NAME = r"trainyard-[a-z0-9-]{1,30}-[0-9a-f]{16}"
"""Pattern of a baked image's name (components/node/bake.py). All platforms accept such names."""

MACHINES = "machines"
"""Key in pydantic's validation context for the stack's machine types, whose names are not validated yet."""
PLATFORMS = "platforms"
"""Key in pydantic's validation context for the function that parses the `platform:` section
(components/platforms/registry.py), because this package does not know the providers."""


class Model(BaseModel):
    """Base class for the sections of a stack file. It rejects unknown keys, and keeps values out of error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    refused_keys: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Mapping from an unknown key to the rule and fix in its specific message."""


def _not_reserved(name: str) -> str:
    if name in {"head", "default", "all"}:
        raise RuleError(f"'{name}' is reserved", "name the group after its machines, for example gpu")
    return name


Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$",
        description="must be 1 to 16 lowercase letters, digits and hyphens, beginning with a letter, not ending in '-'",
        examples=["gpu"],
    ),
]
"""A DNS label of at most 16 characters, because host names contain it."""

GroupName = Annotated[Name, AfterValidator(_not_reserved)]
"""Name of a node group and its Slurm partition."""

MachineName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{1,62}$",
        description="must be the name of a machine type: letters, digits, hyphens and underscores",
        examples=["vm-gpu2"],
    ),
]

HostName = Annotated[
    str,
    Field(
        pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="must be lowercase letters, digits and hyphens, beginning with a letter, not ending in '-'",
        examples=["node1"],
    ),
]
"""Name of an existing host, both in the stack file and in the cluster."""


class PlatformSpec(Model):
    """Base class for `platform:` sections. Each platform has a subclass with `provider: Literal[...]`."""

    # A change to one of these fields neither replaces nor restarts a machine. This is a comment because schema.py would
    # treat a docstring as the description of a field.
    beside_machines: ClassVar[frozenset[str]] = frozenset()

    provider: Annotated[str, Field(description="must be a known platform", examples=["local"])]
    image: Annotated[str, Field(description="must be a known image", examples=["debian-13"])]

    @property
    def baked_name(self) -> str | None:
        """The baked image that the machines boot, or None if they boot another image."""
        return None


class CloudSpec(PlatformSpec, ABC):
    """Base class for the `platform:` sections of clouds, which have prices and quotas."""

    @property
    @abstractmethod
    def quota_region(self) -> str:
        """The region whose quotas and prices apply to the stack."""

    @abstractmethod
    def offer(self, kind: str) -> str | None:
        """Return the name of the row in service_prices.yaml for `kind` (shared storage or `bastion`), or None."""


class ExistingHostsSpec(PlatformSpec, ABC):
    """Base class for the `platform:` sections of platforms that use existing hosts."""

    @abstractmethod
    def addresses(self) -> Mapping[str, IPv4Address]:
        """Return a mapping from host name to private address."""

    @abstractmethod
    def machine_types(self) -> Mapping[str, Machine]:
        """Return a mapping from name to machine type, from the catalog and the `platform:` section."""


def used_machines(info: ValidationInfo) -> list[str]:
    """Return the names of the stack's machine types. The list is empty without the context of `cluster_spec`."""
    return info.context.get(MACHINES, []) if info.context else []


def machine_types(platform: PlatformSpec) -> Mapping[str, Machine]:
    """Return the machine types that a stack file can use on this platform, by name."""
    return platform.machine_types() if isinstance(platform, ExistingHostsSpec) else machines(platform.provider)


def existing_hosts(platform: PlatformSpec) -> Mapping[str, IPv4Address] | None:
    """Return the existing hosts' private addresses by name, or None if the platform creates its machines."""
    return platform.addresses() if isinstance(platform, ExistingHostsSpec) else None
