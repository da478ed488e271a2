"""The disk with the shared files of a head node: it may grow, but no cloud can shrink it."""

from __future__ import annotations

import pulumi

from components.errors import PlatformError
from components.spec import ClusterSpec

INPUT = "sharedDiskGib"
"""Input of the platform's component: the engine gives hooks its value of the last `up`."""


def shared_disk_inputs(spec: ClusterSpec) -> dict[str, pulumi.Input[int]]:
    """Return the component inputs with the size of the disk; nothing if the head node shares no disk of its own."""
    shared = spec.storage.shared
    return {INPUT: shared.size_gib} if shared.kind == "head_nfs" else {}


def refuse_to_shrink() -> pulumi.ResourceOptions:
    """Return the options of a platform's component that refuse a smaller disk, in a preview and in `up`.

    The component is the parent of every machine and disk, and the engine runs the hook before it registers the
    component. So nothing is changed, also with --skip-preview.
    """
    hook = pulumi.ResourceHook("trainyard-shared-disk", refuse_smaller, pulumi.ResourceHookOptions(on_dry_run=True))
    return pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_update=[hook]))


def refuse_smaller(args: pulumi.ResourceHookArgs) -> None:
    """Raise PlatformError if the new inputs ask for a smaller disk than the old ones."""
    old, new = ((inputs or {}).get(INPUT) for inputs in (args.old_inputs, args.new_inputs))
    if old is None or new is None or new >= old:
        return
    raise PlatformError(
        f"cluster.storage.shared.size_gib: the disk has {old:g} GiB and cannot shrink to {new:g} GiB; an empty disk "
        f"would replace it. Nothing was changed. Fix: use {old:g} or more. To start over with a smaller disk, copy the "
        "files elsewhere, destroy the cluster and create it again"
    )
