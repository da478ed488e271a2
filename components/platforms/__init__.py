"""The registry of platforms: one line each. Only the chosen platform's module, and so only its SDK, is imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from components.errors import RuleError
from components.spec import PlatformSpec

if TYPE_CHECKING:
    from components.platforms.base import Platform

PLATFORMS: dict[str, str] = {
    "local": "components.platforms.local",
}
"""Provider name -> module that offers `Spec` (a PlatformSpec) and `platform_class()` (its Platform)."""


def platform_spec(value: Any) -> PlatformSpec:
    """Validate the `platform:` section with the model of its provider. Raises RuleError for an unknown one."""
    known = ", ".join(sorted(PLATFORMS))
    if isinstance(value, PlatformSpec):
        return value
    if not isinstance(value, dict):
        raise RuleError("must be a section with a provider", f"write {{provider: ...}} with one of: {known}")
    provider = value.get("provider")
    if not isinstance(provider, str) or provider not in PLATFORMS:
        raise RuleError("must name a known platform", f"use one of: {known}", at="provider")
    spec: type[PlatformSpec] = import_module(PLATFORMS[provider]).Spec
    return spec.model_validate(value)


def platform_class(provider: str) -> type[Platform]:
    """Return the Platform of a registered provider."""
    found: type[Platform] = import_module(PLATFORMS[provider]).platform_class()
    return found
