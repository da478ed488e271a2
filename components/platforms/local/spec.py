"""LocalSpec: the `platform:` section of a local stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from components.spec.model import BAKED_NAME, PlatformSpec

_SUITES: Mapping[str, str] = {"debian-13": "trixie", "ubuntu-24.04": "noble"}


class LocalSpec(PlatformSpec):
    """The `platform:` section of a local stack."""

    beside_machines: ClassVar[frozenset[str]] = frozenset({"baked_image"})

    provider: Literal["local"]
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """`tcg` is software emulation. `auto` tries KVM first."""
    ssh_port_base: Annotated[int, Field(ge=1024, le=60000, strict=True)] = 22100
    """SSH port of the head on 127.0.0.1. Workers use the next 224 ports."""
    image: Literal["debian-13", "ubuntu-24.04"] = "debian-13"
    """Operating system of the machines. `ubuntu-24.04` has not been booted."""
    baked_image: Annotated[
        str | None,
        Field(
            pattern=f"^{BAKED_NAME}$",
            description="must be the name of an image, which `yard bake` prints",
            examples=["trainyard-debian-13-0123456789abcdef"],
        ),
    ] = None
    """Image that `yard bake` built."""

    @property
    def suite(self) -> str:
        """The suite of the golden image (image_build.RELEASES)."""
        return _SUITES[self.image]

    @property
    def baked_name(self) -> str | None:
        return self.baked_image
