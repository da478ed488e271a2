"""Checks that several platforms share. The ids begin with the name of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from components.node.bake import baked_name, image_prefix
from components.plan.check import Broken, Check, Level, Planned, check
from components.platforms.registry import platform_facts

_WIDEST: Final = 8
"""Prefix length of the largest network that is accepted. The largest private range is 10.0.0.0/8."""


@check(
    "ssh-open",
    Level.ERROR,
    "list the networks that you work from, for example your public address as a /32, or use via: bastion",
)
def ssh_is_not_open(planned: Planned) -> Iterator[Broken]:
    """Each network in access.allow_ssh_from is a /8 or smaller."""
    for index, network in enumerate(planned.plan.access.allow_ssh_from):
        if network.prefixlen < _WIDEST:
            yield Broken(
                path=f"cluster.access.allow_ssh_from.{index}",
                rule=f"{network} opens SSH to the whole internet or a large part of it",
            )


@check(
    "ssh-way",
    Level.ERROR,
    "list the networks that you work from, for example your public address as a /32, or use via: bastion",
)
def ssh_has_a_way(planned: Planned) -> Iterator[Broken]:
    """At least one network can connect to the head over SSH."""
    access = planned.plan.access
    if access.via != "bastion" and not access.allow_ssh_from:
        yield Broken(
            path="cluster.access.allow_ssh_from",
            rule="no network may connect to the head over SSH, so `up` would fail",
        )


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


def access_rules(platform: str) -> tuple[Check[Planned], ...]:
    """Return a cloud's checks of the access to the head."""
    return replace(ssh_has_a_way, id=f"{platform}-ssh-way"), replace(ssh_is_not_open, id=f"{platform}-ssh-open")


def image_rules(platform: str) -> tuple[Check[Planned], ...]:
    """Return the checks of images from `yard bake`."""
    return (
        replace(baked_image_has_system, id=f"{platform}-image-system"),
        replace(baked_image_is_current, id=f"{platform}-image-stale"),
    )
