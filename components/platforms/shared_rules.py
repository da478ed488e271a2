"""Checks that several platforms share, and functions that create violations for each platform's own checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from components.node.bake import baked_name, image_prefix
from components.plan.check import Broken, Check, Level, Planned, check
from components.platforms.registry import platform_facts

_WIDEST = 8
"""Prefix length of the largest network that is accepted. The largest private range is 10.0.0.0/8."""


def in_group(group: str, field: str, rule: str, *, fix: int = 0, **words: object) -> Broken:
    """Return a violation in a field of a node group."""
    return Broken(path=f"cluster.nodes.{group}.{field}", rule=rule, words=words, fix=fix)


def in_platform(field: str, rule: str, *, fix: int = 0, **words: object) -> Broken:
    """Return a violation in a field of the `platform:` section."""
    return Broken(path=f"cluster.platform.{field}", rule=rule, words=words, fix=fix)


def in_storage(field: str, rule: str, **words: object) -> Broken:
    """Return a violation in a field of the shared storage."""
    return Broken(path=f"cluster.storage.shared.{field}", rule=rule, words=words)


_ALLOW_SSH = "list the networks that you work from, for example your public address as a /32, or use via: bastion"


@check("ssh-open", Level.ERROR, _ALLOW_SSH)
def _ssh_is_not_open(planned: Planned) -> Iterator[Broken]:
    """Each network in access.allow_ssh_from is a /8 or smaller."""
    for index, network in enumerate(planned.plan.access.allow_ssh_from):
        if network.prefixlen < _WIDEST:
            rule = f"{network} opens SSH to the whole internet or a large part of it"
            yield Broken(path=f"cluster.access.allow_ssh_from.{index}", rule=rule)


@check("ssh-way", Level.ERROR, _ALLOW_SSH)
def _ssh_has_a_way(planned: Planned) -> Iterator[Broken]:
    """At least one network can connect to the head over SSH."""
    access = planned.plan.access
    if access.via != "bastion" and not access.allow_ssh_from:
        rule = "no network may connect to the head over SSH, so `up` would fail"
        yield Broken(path="cluster.access.allow_ssh_from", rule=rule)


@check("baked-image-system", Level.ERROR, "run `yard bake` for this stack, and use the image that it prints")
def _baked_image_has_system(planned: Planned) -> Iterator[Broken]:
    """The baked image has the stack's operating system."""
    name = planned.plan.platform.baked_name
    if name is not None and not _is_for(planned, name):
        rule = f"{name} is not an image of {planned.plan.image.os}, the system of this stack"
        yield in_platform("baked_image", rule)


@check(
    "baked-image-stale",
    Level.WARNING,
    "run `yard bake` and use {wanted} for new machines; nodes with the old image install the missing parts",
)
def _baked_image_is_current(planned: Planned) -> Iterator[Broken]:
    """The baked image has the content that `yard bake` would build for this stack file."""
    name, baking = planned.plan.platform.baked_name, platform_facts(planned.plan.provider).baking
    if name is None or isinstance(baking, str) or not _is_for(planned, name):
        return
    wanted = baked_name(planned.plan, baking.base(planned.plan))
    if name != wanted:
        rule = f"{name} was built with stages, parameters or a base image that differ from those of this stack"
        yield in_platform("baked_image", rule, wanted=wanted)


def _is_for(planned: Planned, name: str) -> bool:
    return name.rpartition("-")[0] + "-" == image_prefix(planned.plan)


def access_rules(platform: str) -> tuple[Check[Planned], ...]:
    """Return a cloud's checks for access to the head. The checks' ids begin with the platform's name."""
    return replace(_ssh_has_a_way, id=f"{platform}-ssh-way"), replace(_ssh_is_not_open, id=f"{platform}-ssh-open")


def image_rules(platform: str) -> tuple[Check[Planned], ...]:
    """Return a platform's checks for images that `yard bake` built. The checks' ids begin with the platform's name."""
    return (
        replace(_baked_image_has_system, id=f"{platform}-image-system"),
        replace(_baked_image_is_current, id=f"{platform}-image-stale"),
    )
