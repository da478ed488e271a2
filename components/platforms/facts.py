"""Rules and limits of a platform. Imports no SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from components.plan.check import Check, Planned
from components.plan.plan import ClusterPlan


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """A tunnel from the machine that runs Pulumi to a head node without a public address."""

    program: str
    """Name of the cloud's command-line tool, which opens the tunnel."""
    port: int
    """Loopback port for the tunnel during a deployment."""
    option: str
    """The key in the stack file that sets the port."""


@dataclass(frozen=True, kw_only=True)
class Baking:
    """How `yard bake` builds an image for a platform."""

    base: Callable[[ClusterPlan], str]
    """Returns a text that identifies the base image and the location of the new image."""
    here: Callable[[ClusterPlan, str], str] | None = None
    """Builds the image with this name on this computer if it does not exist, and returns the value of `baked_image`.
    None if Pulumi creates the image."""


@dataclass(frozen=True, kw_only=True)
class PlatformFacts:
    """The rules and limits of one platform. A field has its default value if the platform has no such rule or
    resource."""

    baking: Baking | str
    """How `yard bake` builds an image, or the reason why no image can be built."""
    user_data_limit: int
    """Maximum size of user-data in bytes."""
    checks: tuple[Check[Planned], ...] = ()
    """Checks that apply only to stacks on this platform."""
    quotas: Callable[[ClusterPlan], Mapping[str, int]] | None = None
    """Returns how much of each quota the stack needs for resources other than machines, in the quota's unit."""
    tunnel: Callable[[ClusterPlan], Tunnel] | None = None
    """Returns the tunnel for `access.via: bastion`."""
    largest_disk_gib: int | None = None
    """Maximum size of the head's shared disk in GiB, or None if the platform's own checks limit it."""
    billed: Mapping[str, str] = field(default_factory=dict)
    """Display name of each Pulumi type that is billed by the hour."""
    storage_types: frozenset[str] = frozenset()
    """Types in `billed` that are shared storage."""
    gateway_types: frozenset[str] = frozenset()
    """Types in `billed` that are gateways for `access.via: bastion`."""
