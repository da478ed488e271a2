"""The identity with which the head starts and stops the machines of elastic groups (repair/channels.py)."""

from __future__ import annotations

import uuid

import pulumi
from pulumi_azure_native import authorization, managedidentity

from components.platforms.azure.network import ResourceGroup

_MACHINES = "Microsoft.Compute/virtualMachines"
ACTIONS = (
    f"{_MACHINES}/read",
    f"{_MACHINES}/instanceView/read",
    f"{_MACHINES}/start/action",
    f"{_MACHINES}/deallocate/action",
)
"""The head's permissions (Microsoft, "Azure permissions for Compute", read 2026-11-26)."""


def power_identity(name: str, group: ResourceGroup, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare an identity that can start and deallocate the resource group's machines, and return its resource id.

    The resource group contains only the cluster's machines. `name` is the cluster's name.
    """
    identity = managedidentity.UserAssignedIdentity(
        f"{name}-power", resource_name_=f"{name}-power", **group.common, opts=opts
    )
    role = authorization.RoleDefinition(
        f"{name}-power-role",
        role_definition_id=_guid(group.id, "role"),
        # The names of custom roles are unique in a tenant.
        role_name=group.id.apply(lambda id: f"Trainyard power of {id}"),
        description="Starts and stops the machines of one Trainyard cluster",
        permissions=[authorization.PermissionArgs(actions=list(ACTIONS))],
        assignable_scopes=[group.id],
        scope=group.id,
        opts=opts,
    )
    authorization.RoleAssignment(
        f"{name}-power-assignment",
        role_assignment_name=_guid(group.id, "assignment"),
        scope=group.id,
        role_definition_id=role.id,
        principal_id=identity.principal_id,
        # Without the type, Azure may reject an identity that was created a moment ago (Microsoft, "Troubleshoot Azure
        # RBAC", read 2026-11-26).
        principal_type="ServicePrincipal",
        opts=opts,
    )
    return identity.id


def _guid(group: pulumi.Output[str], purpose: str) -> pulumi.Output[str]:
    """Return an id that remains the same for a resource group."""
    return group.apply(lambda id: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{id}/trainyard-power/{purpose}")))
