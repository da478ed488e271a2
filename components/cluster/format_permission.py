"""Permission to format the head's data disk, granted once for each disk created by the provisioner."""

from __future__ import annotations

import pulumi
from pulumi_command import remote


def format_permission(
    name: str,
    disk: pulumi.Output[str],
    connection: remote.ConnectionArgs,
    opts: pulumi.ResourceOptions,
) -> remote.Command:
    """Return the command that permits or refuses formatting. `disk` is the unique ID of the data disk.

    A new disk ID replaces the resource, so `create` runs again. If the head is replaced but the disk is kept, only the
    connection changes. In this case `update` runs on the new head, which then refuses to format the disk even if the
    disk appears to be empty. Without `update`, pulumi-command would run `create` again (pulumi-command SDK,
    remote.Command, input `update`; read 2026-11-22).
    """
    return remote.Command(
        f"{name}-format-permission",
        connection=connection,
        create="sudo trainyard-allow-format",
        update="sudo trainyard-allow-format --refuse",
        triggers=[disk],
        add_previous_output_in_env=False,
        opts=opts,
    )
