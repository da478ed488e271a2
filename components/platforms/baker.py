"""The interface of a cloud's baker, which builds an image in a separate Pulumi stack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pulumi

from components.plan.plan import ClusterPlan

BUILD_SECONDS = 5400
"""Maximum time until the builder shuts down. A driver installation compiles kernel modules."""
POLL_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class BakeArgs:
    """Arguments for a baker."""

    plan: ClusterPlan
    name: str
    """Name of the image."""
    builds: bool
    """Whether the stack contains the builder. Without the builder, the stack only keeps an existing image."""
    admin_key: str
    """An SSH public key, which some clouds require to create a machine. The private key no longer exists."""


class Baker(pulumi.ComponentResource):
    """Component that builds an image. Subclasses set `image`."""

    image: pulumi.Output[str]
    """The value of `baked_image` in the stack file."""

    def __init__(self, args: BakeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"trainyard:index:{type(self).__name__}", args.name, {}, opts)


def builder_plan(plan: ClusterPlan, name: str) -> ClusterPlan:
    """Return the plan of the builder: a head without workers and without access from outside.

    The builder boots the base image. It has the machine type of the head, which is cheaper than a GPU machine.
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
    """Return the id of the builder's boot disk when the builder is off.

    `read` returns the id, or None while the builder is on. Raises pulumi.RunError after BUILD_SECONDS.
    """
    for attempt in range(BUILD_SECONDS // POLL_SECONDS):
        if attempt:
            await asyncio.sleep(POLL_SECONDS)
        if disk := await read():
            return disk
    raise pulumi.RunError(f"{name} was not turned off within {BUILD_SECONDS} s. Fix: run `yard bake` again")
