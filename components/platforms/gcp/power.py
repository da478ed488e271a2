"""The service account with which the head starts and stops the machines of elastic groups (repair/channels.py)."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
from pulumi_gcp import compute, projects, serviceaccount

PERMISSIONS = ("compute.instances.get", "compute.instances.start", "compute.instances.stop")
"""The head's permissions on each machine (Google, "IAM permissions reference", read 2026-11-26)."""
OPERATION_PERMISSIONS = ("compute.zoneOperations.get",)
"""The head's permissions on the project, so that it can read why a machine did not start."""


class Power(pulumi.ComponentResource):
    """The head's service account and its roles. `permit` binds the role to machines."""

    email: pulumi.Output[str]

    def __init__(self, name: str, project: str, nodes_account: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:gcp:Power", f"{name}-power", None, opts)
        self._name, self._project = name, project
        self._child = pulumi.ResourceOptions(parent=self)
        account = serviceaccount.Account(
            f"{name}-power",
            account_id=f"{name}-head",
            display_name=f"Head of the Trainyard cluster {name}",
            opts=self._child,
        )
        self.email = account.email
        self._member = account.email.apply(lambda email: f"serviceAccount:{email}")
        self._role = self._role_of("power", PERMISSIONS)
        reader = self._role_of("operations", OPERATION_PERMISSIONS)
        projects.IAMMember(
            f"{name}-power-operations", project=project, role=reader, member=self._member, opts=self._child
        )
        # To start a machine, a caller must be permitted to act as its account, which has no roles (Google, "Attach
        # service accounts to resources", read 2026-11-26).
        serviceaccount.IAMMember(
            f"{name}-power-nodes",
            service_account_id=pulumi.Output.from_input(nodes_account).apply(
                lambda email: f"projects/{project}/serviceAccounts/{email}"
            ),
            role="roles/iam.serviceAccountUser",
            member=self._member,
            opts=self._child,
        )
        self.register_outputs({"email": self.email})

    def permit(self, machines: Mapping[str, compute.Instance]) -> None:
        """Permit the head to start and stop these machines."""
        for name, machine in machines.items():
            # A new machine with the same name has no permissions. The old binding is deleted first, because deleting it
            # later would also delete the new one, which has the same role and member (resourceIamMemberDelete in
            # tpgiamresource/resource_iam_member.go of terraform-provider-google-beta@1acaf34f6d1a, read 2026-11-26).
            renewed = pulumi.ResourceOptions(replacement_trigger=machine.instance_id, delete_before_replace=True)
            compute.InstanceIAMMember(
                f"{name}-power",
                instance_name=machine.name,
                zone=machine.zone,
                project=self._project,
                role=self._role,
                member=self._member,
                opts=pulumi.ResourceOptions.merge(self._child, renewed),
            )

    def _role_of(self, purpose: str, permissions: tuple[str, ...]) -> pulumi.Output[str]:
        """Declare a custom role, and return its full name."""
        return projects.IAMCustomRole(
            f"{self._name}-{purpose}",
            # A role's id contains no hyphens.
            role_id=f"trainyard_{purpose}_{self._name.replace('-', '_')}",
            title=f"Trainyard {purpose} of {self._name}",
            permissions=list(permissions),
            opts=self._child,
        ).name
