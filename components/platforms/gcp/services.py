"""Google APIs and IAM roles that `pulumi up` and `yard preview --live` need in a project. Read 2026-11-22.

Sources: API names of the Google Cloud API reference; roles: "IAM basic and predefined roles reference" of Google Cloud.
"""

from __future__ import annotations

SERVICES = {
    "compute": "compute.googleapis.com",
    "filestore": "file.googleapis.com",
    "serviceaccount": "iam.googleapis.com",
}
"""Module of the Pulumi type ("compute" of gcp:compute/instance:Instance) -> API that serves it."""

BESIDE = ("iap.googleapis.com", "cloudquotas.googleapis.com", "serviceusage.googleapis.com")
"""APIs without a resource: the tunnel to the head, and the quotas and APIs that `yard preview --live` reads."""

ROLES = {
    "roles/compute.admin": "machines, disks, networks, firewall rules, addresses, guest attributes",
    "roles/file.editor": "Filestore",
    "roles/iam.serviceAccountAdmin": "the service account of the machines",
    "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs, to start machines with that account",
    "roles/iap.tunnelResourceAccessor": "the tunnel to the head with access.via: bastion",
    "roles/serviceusage.serviceUsageAdmin": "to enable the APIs",
    "roles/cloudquotas.viewer": "the quotas of yard preview --live",
}
"""Role -> what needs it."""


def required_services() -> tuple[str, ...]:
    """Return the APIs that must be enabled, sorted."""
    return tuple(sorted({*SERVICES.values(), *BESIDE}))


def enable_command(project: str, services: tuple[str, ...]) -> str:
    """Return the command that enables APIs."""
    return f"gcloud services enable {' '.join(services)} --project {project}"
