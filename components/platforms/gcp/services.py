"""Google APIs and IAM roles that `pulumi up` and `yard preview --live` need in a project. Read 2026-11-22.

Sources: Google Cloud API reference (API names); Google Cloud, "IAM basic and predefined roles reference" (roles).
"""

from __future__ import annotations

SERVICES = {
    "compute": "compute.googleapis.com",
    "filestore": "file.googleapis.com",
    "serviceaccount": "iam.googleapis.com",
}
"""Google API that the resource types in each module need. The module of gcp:compute/instance:Instance is "compute"."""

BESIDE = ("iap.googleapis.com", "cloudquotas.googleapis.com", "serviceusage.googleapis.com")
"""APIs for the tunnel to the head, and for the quotas and services that `yard preview --live` reads."""

ROLES = {
    "roles/compute.admin": "machines, disks, networks, firewall rules, addresses, guest attributes",
    "roles/file.editor": "Filestore",
    "roles/iam.serviceAccountAdmin": "the machines' service account",
    "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs, to start machines with that account",
    "roles/iap.tunnelResourceAccessor": "the tunnel to the head with access.via: bastion",
    "roles/serviceusage.serviceUsageAdmin": "to enable the APIs",
    "roles/cloudquotas.viewer": "the quotas that yard preview --live reads",
}
"""Roles, with the resources or commands that need each role."""


def required_services() -> tuple[str, ...]:
    """Return the APIs that must be enabled, sorted."""
    return tuple(sorted({*SERVICES.values(), *BESIDE}))


def enable_command(project: str, services: tuple[str, ...]) -> str:
    """Return the command that enables APIs."""
    return f"gcloud services enable {' '.join(services)} --project {project}"
