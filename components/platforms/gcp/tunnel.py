"""Command that opens a tunnel through Identity-Aware Proxy."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from components.platforms.gcp.facts import PROGRAM


def tunnel_command(machine: pulumi.Output[str], zone: str, project: str) -> pulumi.Output[Sequence[str]]:
    """Return the command, with "{port}" for the local port. `machine` is the name of the instance.

    Options: Google, "gcloud compute start-iap-tunnel" (read 2026-11-22). The command tests a connection before it
    listens, and exits with code 1 if the machine does not respond (google-cloud-sdk@01f043c:
    lib/googlecloudsdk/command_lib/compute/iap_tunnel.py, _TestConnection).
    """
    return machine.apply(
        lambda name: (
            PROGRAM,
            *("compute", "start-iap-tunnel", name, "22", "--local-host-port=127.0.0.1:{port}"),
            *(f"--zone={zone}", f"--project={project}"),
        )
    )
