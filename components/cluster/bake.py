"""The stack of an image, which `yard bake` creates."""

from __future__ import annotations

import pulumi

from components.keys import ssh_keypair
from components.plan.plan import ClusterPlan
from components.platforms.baker import BakeArgs
from components.platforms.registry import platform_baker
from trainyard.machines import BAKED_IMAGE


async def baked_image(plan: ClusterPlan, *, builds: bool) -> pulumi.Inputs:
    """Declare the image with the same name as the stack and, if `builds` is set, its builder. Return the outputs.

    The output BAKED_IMAGE exists only after the builder has been deleted.
    """
    # The private key is never stored, so nobody can log in to the builder.
    _, public = ssh_keypair("builder") if builds else ("", "")
    args = BakeArgs(plan=plan, name=pulumi.get_stack(), builds=builds, admin_key=public)
    baker = platform_baker(plan.provider)(args)
    await baker.image.is_known()
    return {} if builds else {BAKED_IMAGE: baker.image}
