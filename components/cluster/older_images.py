"""A warning about machines whose image is older than the image in the stack file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi

from components.cluster.running_jobs import listed
from components.plan.plan import ClusterPlan
from components.platforms.base import Platform, rolled_hosts
from trainyard.machines import ROLL


def warn_of_older_images(plan: ClusterPlan, platform: Platform) -> None:
    """Log a warning, even in a preview, if a machine's image differs from the image of new machines.

    During `yard roll`, nothing is logged, because each batch would repeat the warning for the remaining nodes.
    """
    if rolled_hosts():
        return
    known = {host.plan.name: host.image for host in platform.hosts if host.image is not None}

    def compare(images: Sequence[str]) -> None:
        running = dict(zip(known, images, strict=True))
        if message := older_images_message(plan, running, platform.image, pulumi.get_stack()):
            pulumi.log.warn(message)

    pulumi.Output.all(*known.values()).apply(compare)


def older_images_message(plan: ClusterPlan, running: Mapping[str, str], image: str, stack: str) -> str:
    """Return the warning about machines with a different image than new machines, or "" if there are none.

    `running` contains the image of each machine by host name, or "" if the platform does not report the image. The
    comparison is case-insensitive, because the case of an id in a cloud's response can differ from the stack file.
    """
    older = [host for host in plan.hosts if running.get(host.name, "").casefold() not in {"", image.casefold()}]
    if not older:
        return ""
    lines = [
        f"these machines keep their older image, because `pulumi up` does not replace a machine for a new image: "
        f"{listed([host.name for host in older])}",
        f"  image of new machines: {image}",
    ]
    for old in dict.fromkeys(running[host.name] for host in older):
        lines.append(f"  {listed([host.name for host in older if running[host.name] == old])}: {old}")
    rolled = plan.scheduler == "slurm"
    groups = dict.fromkeys(host.group for host in older if host.group is not None and rolled)
    others = [host.name for host in older if host.group is None or not rolled]
    if groups:
        lines.append(f"To replace them, run {' and '.join(f'`yard roll {group}`' for group in groups)}")
    if others:
        lines.append(
            f"To replace {listed(others)}, wait until no jobs are running (`yard ps`), then run "
            f"`{ROLL}={','.join(others)} pulumi up -s {stack}`"
        )
    return "\n".join(lines)
