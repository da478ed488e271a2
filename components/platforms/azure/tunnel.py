"""Command that opens a tunnel through Azure Bastion."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from components.platforms.azure.facts import PROGRAM


def tunnel_command(bastion: pulumi.Output[str], machine: pulumi.Output[str]) -> pulumi.Output[Sequence[str]]:
    """Return the command, with "{port}" for the local port. `bastion` and `machine` are resource ids.

    The command names the subscription of the Bastion, because the default subscription of `az login` can be different.
    Options: Azure/azure-cli-extensions@0928ba2:src/bastion/azext_bastion/_params.py (read 2026-11-22). The command is
    part of the extension `bastion`, which az installs without a prompt if no terminal is attached
    (Azure/azure-cli@0363f19:src/azure-cli-core/azure/cli/core/extension/dynamic_install.py).
    """
    return pulumi.Output.all(bastion, machine).apply(lambda ids: _command(*ids))


def _command(bastion: str, machine: str) -> Sequence[str]:
    # /subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Network/bastionHosts/NAME
    _, _, subscription, _, group, *_, name = bastion.split("/")
    return (
        PROGRAM,
        *("network", "bastion", "tunnel"),
        *("--subscription", subscription, "--resource-group", group, "--name", name),
        *("--target-resource-id", machine, "--resource-port", "22", "--port", "{port}"),
    )
