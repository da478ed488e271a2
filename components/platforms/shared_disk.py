"""Rejects a smaller data disk for the head, because clouds can only enlarge disks."""

from __future__ import annotations

import pulumi

from components.plan.plan import ClusterPlan
from components.spec.model import CloudSpec
from trainyard.errors import PlatformError

INPUT = "sharedDiskGib"
"""Input to the platform's component. Resource hooks can read its value from the last `up`."""


def shared_disk_inputs(plan: ClusterPlan) -> dict[str, pulumi.Input[int]]:
    """Return the input with the size of the head's data disk, or {} if the head has no data disk."""
    has_disk = plan.storage.kind == "head_nfs" and isinstance(plan.platform, CloudSpec)
    return {INPUT: plan.storage.size_gib} if has_disk else {}


def refuse_to_shrink() -> pulumi.ResourceOptions:
    """Return resource options that let a platform's component reject a smaller disk, in previews and in `up`.

    The engine runs the hook before it registers the component, which is the parent of every machine and disk.
    Therefore `up` fails before it changes any resource, even with --skip-preview.
    """
    hook = pulumi.ResourceHook("trainyard-shared-disk", refuse_smaller, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))


def refuse_smaller(args: pulumi.ResourceHookArgs) -> None:
    """Raise PlatformError if the new inputs have a smaller disk than the old inputs."""
    old, new = ((inputs or {}).get(INPUT) for inputs in (args.old_inputs, args.new_inputs))
    if old is None or new is None or new >= old:
        return
    raise PlatformError(
        f"cluster.storage.shared.size_gib: the disk has {old:g} GiB and cannot shrink to {new:g} GiB; an empty disk "
        f"would replace it. Nothing was changed. Fix: use {old:g} or more. To start over with a smaller disk, copy the "
        "files to a different location, destroy the cluster and create it again"
    )
