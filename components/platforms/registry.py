"""Facts and Pulumi classes for the platforms, by provider."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from components.platforms import PLATFORMS
from components.platforms.facts import PlatformFacts

if TYPE_CHECKING:
    from components.platforms.baker import Baker
    from components.platforms.base import Platform


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
