"""The stack of an image, which `yard bake` creates."""

from __future__ import annotations

import os

import pulumi

from components.keys import ssh_keypair
from components.plan.plan import ClusterPlan
from components.platforms.baker import BakeArgs
from components.platforms.registry import platform_baker
from trainyard.machines import BAKE, BAKED_IMAGE, BUILD, KEEP


def bakes() -> bool:
    """Return whether the stack builds or keeps an image instead of a cluster."""
    return os.environ.get(BAKE) in {BUILD, KEEP}


async def baked_image(plan: ClusterPlan) -> pulumi.Inputs:
    """Build or keep the image with the same name as the stack, and return the stack outputs.

    The output BAKED_IMAGE exists only after the builder has been deleted.
    """
    builds = os.environ[BAKE] == BUILD
    # The private key is never stored, so nobody can log in to the builder.
    _, public = ssh_keypair("builder") if builds else ("", "")
    args = BakeArgs(plan=plan, name=pulumi.get_stack(), builds=builds, admin_key=public)
    baker = platform_baker(plan.provider)(args)
    await baker.image.is_known()
    return {} if builds else {BAKED_IMAGE: baker.image}
