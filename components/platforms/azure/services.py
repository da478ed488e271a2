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
"""Resource provider for each module of Pulumi types. The module of azure-native:compute:VirtualMachine is "compute"."""

ROLES = {
    "Contributor": "every resource in the cluster",
}
"""Roles on the subscription, with the resources that need the role."""


def register_command(namespace: str) -> str:
    """Return the command that registers a resource provider."""
    return f"az provider register --namespace {namespace}"
