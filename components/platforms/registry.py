"""Facts and Pulumi classes for the platforms, by provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from components.plan.check import Check, Planned
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.spec.model import PlatformSpec
from trainyard.errors import RuleError

if TYPE_CHECKING:
    from components.platforms.baker import Baker
    from components.platforms.base import Platform


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


def platform_model(section: Any) -> type[PlatformSpec] | None:
    """Return the model for a `platform:` section, or None if the provider is missing or unknown."""
    provider = section.get("provider") if isinstance(section, dict) else None
    if not isinstance(provider, str) or provider not in PLATFORMS:
        return None
    module = import_module(f"components.platforms.{provider}.spec")
    model: type[PlatformSpec] = getattr(module, f"{PLATFORMS[provider]}Spec")
    return model


def platform_spec(value: Any, context: Any = None) -> PlatformSpec:
    """Validate the `platform:` section with the provider's model. Raises RuleError for an unknown provider.

    `context` is pydantic's validation context, for example with MACHINES.
    """
    if isinstance(value, PlatformSpec):
        return value
    known = ", ".join(sorted(PLATFORMS))
    if not isinstance(value, dict):
        raise RuleError("must be a section of keys and values", f"write {{provider: ...}} with one of: {known}")
    model = platform_model(value)
    if model is None:
        raise RuleError("must name a known platform", f"use one of: {known}", at="provider")
    return model.model_validate(value, context=context)


def platform_facts(provider: str) -> PlatformFacts:
    """Return the facts for a platform. Imports no SDK."""
    facts: PlatformFacts = import_module(f"components.platforms.{provider}.facts").FACTS
    return facts


def platform_class(provider: str) -> type[Platform]:
    """Return the Platform subclass of a provider. The call imports Pulumi and the provider's SDK."""
    module = import_module(f"components.platforms.{provider}.platform")
    platform: type[Platform] = getattr(module, f"{PLATFORMS[provider]}Platform")
    return platform


def platform_baker(provider: str) -> type[Baker]:
    """Return the Baker subclass of a provider. The call imports Pulumi and the provider's SDK."""
    module = import_module(f"components.platforms.{provider}.bake")
    baker: type[Baker] = getattr(module, f"{PLATFORMS[provider]}Baker")
    return baker
