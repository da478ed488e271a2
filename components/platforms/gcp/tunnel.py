"""The command that opens a tunnel through Identity-Aware Proxy."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

PROGRAM = "gcloud"


def tunnel_command(machine: pulumi.Output[str], zone: str, project: str) -> pulumi.Output[Sequence[str]]:
    """Return the command, with "{port}" for the local port. `machine` is the instance's name, once it exists.

    Options: Google, "gcloud compute start-iap-tunnel" (read 2026-11-22). It tests a connection before it listens, and
    ends with exit code 1 while the machine does not answer (google-cloud-sdk@01f043c:
    lib/googlecloudsdk/command_lib/compute/iap_tunnel.py, _TestConnection).
    """
    return machine.apply(
        lambda name: (
            PROGRAM,
            *("compute", "start-iap-tunnel", name, "22", "--local-host-port=127.0.0.1:{port}"),
            *(f"--zone={zone}", f"--project={project}"),
        )
    )
