"""Checks for images built by `yard bake`. Each platform that builds images lists these checks with its own ids."""

from __future__ import annotations

from collections.abc import Iterator

from components.node.bake import baked_name, image_prefix
from components.plan.check import Broken, Level, Planned, check
from components.platforms.registry import platform_facts

_PATH = "cluster.platform.baked_image"


@check("baked-image-system", Level.ERROR, "run `yard bake` for this stack, and use the image that it prints")
def baked_image_has_system(planned: Planned) -> Iterator[Broken]:
    """The baked image has the stack's operating system."""
    name = planned.plan.platform.baked_name
    if name is not None and not _is_for(planned, name):
        yield Broken(path=_PATH, rule=f"{name} is not an image of {planned.plan.image.os}, the system of this stack")


@check(
    "baked-image-stale",
    Level.WARNING,
    "run `yard bake` and use {wanted} for new machines; nodes with the old image install the missing parts",
)
def baked_image_is_current(planned: Planned) -> Iterator[Broken]:
    """The baked image has the content that `yard bake` would build for this stack file."""
    name, baking = planned.plan.platform.baked_name, platform_facts(planned.plan.provider).baking
    if name is None or isinstance(baking, str) or not _is_for(planned, name):
        return
    wanted = baked_name(planned.plan, baking.base(planned.plan))
    if name != wanted:
        yield Broken(
            path=_PATH,
            rule=f"{name} was built with stages, parameters or a base image that differ from those of this stack",
            words={"wanted": wanted},
        )


def _is_for(planned: Planned, name: str) -> bool:
    return name.rpartition("-")[0] + "-" == image_prefix(planned.plan)
