"""Azure resource providers and roles that `pulumi up` needs in a subscription. Read 2026-11-22.

Sources: Microsoft, "Resource providers for Azure services" and "Azure built-in roles".
"""

from __future__ import annotations

SERVICES = {
    "compute": "Microsoft.Compute",
    "netapp": "Microsoft.NetApp",
    "network": "Microsoft.Network",
    "resources": "Microsoft.Resources",
    "storage": "Microsoft.Storage",
}
"""Module of the Pulumi type ("compute" of azure-native:compute:VirtualMachine) -> namespace of its provider."""

ROLES = {
    "Contributor": "every resource of the cluster",
}
"""Role on the subscription -> what needs it."""


def register_command(namespace: str) -> str:
    """Return the command that registers a resource provider."""
    return f"az provider register --namespace {namespace}"
