"""The head's identity: it may start and deallocate the cluster's machines, and nothing else."""

from __future__ import annotations

import hashlib

import pulumi

from components.platforms.azure.site import Site

_ACTIONS = [
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachines/instanceView/read",
    "Microsoft.Compute/virtualMachines/start/action",
    "Microsoft.Compute/virtualMachines/deallocate/action",
]


def head_identity(site: Site, parent: pulumi.Resource) -> pulumi.Output[str]:
    """Declare the identity and its role in the cluster's resource group; return the identity's id.

    Whoever runs this must be allowed to give roles away (Owner or User Access Administrator).
    """
    from pulumi_azure_native import authorization, managedidentity  # noqa: PLC0415  (few stacks ask for it)

    child = pulumi.ResourceOptions(parent=parent)
    name = f"{site.cluster}-head"
    identity = managedidentity.UserAssignedIdentity(
        f"{name}-identity",
        # Pulumi makes up the end of its name: the SDK's argument for it is hidden behind Pulumi's own.
        resource_group_name=site.group,
        location=site.region,
        tags=site.tags,
        opts=child,
    )
    role = authorization.RoleDefinition(
        f"{name}-role",
        # Names of roles are the whole tenant's.
        role_name=site.group_id.apply(
            lambda group: f"Trainyard {site.cluster} power {hashlib.sha256(group.lower().encode()).hexdigest()[:8]}"
        ),
        role_type="CustomRole",
        description=f"Start and deallocate machines of the Trainyard cluster {site.cluster}",
        scope=site.group_id,
        assignable_scopes=[site.group_id],
        permissions=[authorization.PermissionArgs(actions=_ACTIONS, not_actions=[])],
        opts=child,
    )
    authorization.RoleAssignment(
        f"{name}-assignment",
        principal_id=identity.principal_id,
        # Without it Azure looks for a new identity in a directory that has not heard of it yet.
        principal_type="ServicePrincipal",
        role_definition_id=role.id,
        scope=site.group_id,
        opts=child,
    )
    return identity.id
