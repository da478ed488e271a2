"""LocalSpec: the `platform:` section of a local stack."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from components.stackfile.model import PlatformSpec


class LocalSpec(PlatformSpec):
    """The `platform:` section of a local stack."""

    provider: Literal["local"]
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """`auto` selects KVM if a test boot succeeds, and software emulation (tcg) otherwise."""
    ssh_port_base: Annotated[int, Field(ge=1024, le=60000, strict=True)] = 22100
    """SSH port of the head on 127.0.0.1. Workers use the next 224 ports."""
    image: Literal["debian-13"] = "debian-13"
