"""The facts and the Pulumi classes of each provider's platform."""

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


@dataclass(frozen=True)
class Tunnel:
    """A tunnel from the machine that runs Pulumi to a head node without a public address."""

    program: str
    """The cloud's command-line tool, which opens the tunnel."""
    port: int
    """The tunnel's loopback port during a deployment."""
    option: str
    """The key in the stack file that sets the port."""


@dataclass(frozen=True, kw_only=True)
class Baking:
    """How `yard bake` builds an image for a platform."""

    base: Callable[[ClusterPlan], str]
    """Returns a text that identifies the base image and the new image's location."""
    here: Callable[[ClusterPlan, str], str] | None = None
    """Builds the image with this name on this computer if it does not exist, and returns the value of `baked_image`.
    This field is None if Pulumi creates the image."""


@dataclass(frozen=True, kw_only=True)
class LineItem:
    """Equal resources that are billed by the hour even while their machines are off, for example boot disks."""

    row: str
    """Name of the row in service_prices.yaml."""
    count: int
    boot_disk_gib: int = 0
    """Size of each boot disk, or 0 for other resources."""

    @property
    def name(self) -> str:
        disk = f" boot disk of {self.boot_disk_gib} GiB" if self.boot_disk_gib else ""
        return f"{self.count} x {self.row}{disk}"


@dataclass(frozen=True, kw_only=True)
class PlatformFacts:
    """A platform's rules and limits. Fields that do not apply to a platform keep their default values."""

    baking: Baking | str
    """How `yard bake` builds an image, or why it cannot."""
    user_data_limit: int
    """Maximum size of user-data in bytes."""
    checks: tuple[Check[Planned], ...] = ()
    """Checks that apply only to this platform's stacks."""
    quotas: Callable[[ClusterPlan], Mapping[str, int]] | None = None
    """Returns a mapping from quota to the amount that resources other than machines need, in the quota's unit."""
    line_items: Callable[[ClusterPlan], tuple[LineItem, ...]] = lambda _: ()
    """Returns the boot disks, public addresses and NAT of a stack, and other resources that are billed by the hour."""
    tunnel: Callable[[ClusterPlan], Tunnel] | None = None
    """Returns the tunnel for `access.via: bastion`."""
    power_channel: Callable[[ClusterPlan], Mapping[str, str] | None] = lambda _: None
    """Returns how the head starts and stops the machines of elastic groups (repair/channels.py), or None if it
    cannot."""
    largest_disk_gib: int | None = None
    """Maximum size of the head's shared disk in GiB, or None if the platform's own checks limit it."""
    billed: Mapping[str, str] = field(default_factory=dict)
    """Mapping from Pulumi type to display name, for all types that are billed by the hour."""
    storage_types: frozenset[str] = frozenset()
    """Types in `billed` that are shared storage."""
    gateway_types: frozenset[str] = frozenset()
    """Types in `billed` that are gateways for `access.via: bastion`."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Mapping from other types in `billed` to the row in service_prices.yaml with the price of one resource."""


def platform_model(section: Any) -> type[PlatformSpec] | None:
    """Return the model of a `platform:` section, or None if its provider is missing or unknown."""
    provider = section.get("provider") if isinstance(section, dict) else None
    if not isinstance(provider, str) or provider not in PLATFORMS:
        return None
    model: type[PlatformSpec] = _member(provider, "spec", f"{PLATFORMS[provider]}Spec")
    return model


def platform_spec(value: Any, context: Any = None) -> PlatformSpec:
    """Validate a `platform:` section with its provider's model. Raises RuleError if the provider is unknown.

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


def _member(provider: str, module: str, name: str) -> Any:
    return getattr(import_module(f"components.platforms.{provider}.{module}"), name)


def platform_facts(provider: str) -> PlatformFacts:
    """Return a platform's facts, without importing an SDK."""
    facts: PlatformFacts = _member(provider, "facts", "FACTS")
    return facts


def platform_class(provider: str) -> type[Platform]:
    """Return a provider's subclass of Platform. The call imports Pulumi and the provider's SDK."""
    platform: type[Platform] = _member(provider, "platform", f"{PLATFORMS[provider]}Platform")
    return platform


def platform_baker(provider: str) -> type[Baker]:
    """Return a provider's subclass of Baker. The call imports Pulumi and the provider's SDK."""
    baker: type[Baker] = _member(provider, "bake", f"{PLATFORMS[provider]}Baker")
    return baker
