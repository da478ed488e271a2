"""What a stack file may say about the local platform, and the way to its Platform. Importing it starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from components.platforms.local.fit import problems
from components.spec import PlatformSpec

if TYPE_CHECKING:
    from components.checks.base import Check, Planned
    from components.platforms.base import Platform

__all__ = ["Spec", "checks", "platform_class", "problems"]


class Spec(PlatformSpec):
    """`platform:` of a local stack."""

    provider: Literal["local"]
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """auto: KVM where a probe proves that it works, software emulation (tcg) elsewhere."""
    ssh_port_base: Annotated[int, Field(ge=1024, le=60000, strict=True)] = 22100
    """The head's ssh port on 127.0.0.1; the others follow, each at its own fixed distance, at most 224 away."""
    image: Literal["debian-13"] = "debian-13"


def checks() -> tuple[Check[Planned], ...]:
    """Return no more checks: what this machine cannot hold is in `problems`."""
    return ()


def platform_class() -> type[Platform]:
    """Return the Platform; only this imports pulumi."""
    from components.platforms.local.platform import LocalPlatform  # noqa: PLC0415

    return LocalPlatform
