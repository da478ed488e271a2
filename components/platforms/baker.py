"""The interface of a cloud's baker, which builds an image in a separate Pulumi stack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pulumi

from components.plan.plan import ClusterPlan

BUILD_SECONDS = 5400
"""Maximum time until the builder shuts down. Driver installation includes compiling kernel modules."""
POLL_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class BakeArgs:
    """Arguments for a baker."""

    plan: ClusterPlan
    name: str
    """The image's name."""
    builds: bool
    """Whether the stack contains the builder. Without it, the stack only keeps an existing image."""
    admin_key: str
    """A public SSH key, which some clouds require for new machines. The private key no longer exists."""


class Baker(pulumi.ComponentResource):
    """Component that builds an image. Subclasses set `image`."""

    image: pulumi.Output[str]
    """The value for `baked_image` in the stack file."""

    def __init__(self, args: BakeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"trainyard:index:{type(self).__name__}", args.name, {}, opts)


def builder_plan(plan: ClusterPlan, name: str) -> ClusterPlan:
    """Return the builder's plan: only a head, which boots the base image and is not accessible from outside.

    The builder has the head's machine type, because a GPU machine costs more.
    """
    return replace(
        plan,
        name=name,
        platform=plan.platform.model_copy(update={"baked_image": None}),
        access=plan.access.model_copy(update={"via": "private", "allow_ssh_from": ()}),
        head=replace(plan.head, name=f"{name}-builder"),
        storage=plan.storage.model_copy(update={"kind": "head_nfs", "address": None, "path": None}),
        workers=(),
        groups={},
    )


async def disk_of_stopped(name: str, read: Callable[[], Awaitable[str | None]]) -> str:
    """Wait until the builder is off, and return its boot disk's id. Raises pulumi.RunError after BUILD_SECONDS.

    `read` returns the id, or None while the builder is on.
    """
    for attempt in range(BUILD_SECONDS // POLL_SECONDS):
        if attempt:
            await asyncio.sleep(POLL_SECONDS)
        if disk := await read():
            return disk
    raise pulumi.RunError(f"{name} was not turned off within {BUILD_SECONDS} s. Fix: run `yard bake` again")
