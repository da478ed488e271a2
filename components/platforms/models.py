"""The models for `platform:` sections, by provider."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from components.platforms import PLATFORMS
from components.spec.model import PlatformSpec
from trainyard.errors import RuleError


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
