"""The registry of platforms: one line each. Only the chosen platform's module, and so only its SDK, is imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from components.errors import Problem, RuleError

if TYPE_CHECKING:
    from components.checks.base import Check, Planned
    from components.plan import ClusterPlan
    from components.platforms.base import Platform
    from components.spec import ClusterSpec, PlatformSpec

PLATFORMS: dict[str, str] = {
    "azure": "components.platforms.azure.spec",
    "gcp": "components.platforms.gcp.spec",
    "hosts": "components.platforms.hosts.spec",
    "local": "components.platforms.local.spec",
}
"""Provider name -> module with `Spec` (a PlatformSpec), `problems(spec, plan)`, `checks()` and `platform_class()`."""


def platform_model(section: Any) -> type[PlatformSpec] | None:
    """Return the model of a `platform:` section by its provider, or None where it names none that is registered."""
    provider = section.get("provider") if isinstance(section, dict) else None
    if not isinstance(provider, str) or provider not in PLATFORMS:
        return None
    model: type[PlatformSpec] = import_module(PLATFORMS[provider]).Spec
    return model


def platform_spec(value: Any) -> PlatformSpec:
    """Validate the `platform:` section with the model of its provider. Raises RuleError for an unknown one."""
    # Imported here: the local machines' plugin comes through this package and has no use for pydantic.
    from components.spec import PlatformSpec  # noqa: PLC0415

    if isinstance(value, PlatformSpec):
        return value
    known = ", ".join(sorted(PLATFORMS))
    if not isinstance(value, dict):
        raise RuleError("must be a section of keys and values", f"write {{provider: ...}} with one of: {known}")
    model = platform_model(value)
    if model is None:
        raise RuleError("must name a known platform", f"use one of: {known}", at="provider")
    return model.model_validate(value)


def platform_problems(spec: ClusterSpec, plan: ClusterPlan) -> list[Problem]:
    """Return what the platform itself has against a plan."""
    found: list[Problem] = import_module(PLATFORMS[plan.provider]).problems(spec, plan)
    return found


def platform_checks(provider: str) -> tuple[Check[Planned], ...]:
    """Return the checks that only stacks of that provider are put to."""
    found: tuple[Check[Planned], ...] = import_module(PLATFORMS[provider]).checks()
    return found


def platform_class(provider: str) -> type[Platform]:
    """Return the Platform of a registered provider."""
    found: type[Platform] = import_module(PLATFORMS[provider]).platform_class()
    return found
