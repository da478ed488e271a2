"""Rules and limits for Google Cloud stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from components.plan.check import checks_in
from components.plan.plan import ClusterPlan
from components.platforms.gcp import rules
from components.platforms.gcp.layout import networks_needed
from components.platforms.gcp.spec import GcpSpec, family_of
from components.platforms.registry import Baking, PlatformFacts, Tunnel
from components.platforms.shared_rules import access_rules, image_rules

SERVICES = {
    "compute": "compute.googleapis.com",
    "filestore": "file.googleapis.com",
    "serviceaccount": "iam.googleapis.com",
}
"""Google API that the resource types in each module need (Google Cloud API reference, read 2026-11-22). The module of
gcp:compute/instance:Instance is "compute"."""

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
"""Roles, with the resources or commands that need each role (Google Cloud, "IAM basic and predefined roles reference",
read 2026-11-22)."""


def required_services() -> tuple[str, ...]:
    """Return the APIs that must be enabled, sorted."""
    return tuple(sorted({*SERVICES.values(), *BESIDE}))


def enable_command(project: str, services: tuple[str, ...]) -> str:
    """Return the command that enables APIs."""
    return f"gcloud services enable {' '.join(services)} --project {project}"


DISK_QUOTAS = {"pd-balanced": "SSD_TOTAL_GB", "pd-ssd": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
"""Quota for each disk type, in GB."""
FILESTORE_QUOTAS = {
    "BASIC_HDD": "StandardStorageGbPerRegion",
    "BASIC_SSD": "PremiumStorageGbPerRegion",
    "ZONAL": "EnterpriseStorageGibPerRegion",
    "REGIONAL": "EnterpriseStorageGibPerRegion",
    "ENTERPRISE": "EnterpriseStorageGibPerRegion",
}
"""file.googleapis.com quota for each tier, in GB or GiB. The source has no entry for REGIONAL."""


def stack_quotas(plan: ClusterPlan) -> Mapping[str, int]:
    """Return how much of each quota the stack needs for resources other than machines, in the quota's unit.

    The names of compute quotas are the metrics of `gcloud compute regions describe` and `gcloud compute project-info
    describe` (Compute Engine API v1, Quota.metric). The mapping from resources to quotas comes from
    pkg/validators/quota.go in GoogleCloudPlatform/cluster-toolkit@1047080, read 2026-11-22. The bundled local SSDs of
    A2 Ultra and A3 are not counted because no source states which quota they use.
    """
    spec = plan.platform_spec(GcpSpec)
    needs: Counter[str] = Counter()
    for host in plan.hosts:
        boot_disk = spec.boot_disk_type or family_of(host.machine.name).boot_disks[0]
        needs[DISK_QUOTAS[boot_disk]] += spec.boot_disk_gib
    shared = plan.storage
    if shared.kind == "head_nfs":
        needs["SSD_TOTAL_GB"] += shared.size_gib
    if shared.kind == "filestore":
        needs[FILESTORE_QUOTAS[spec.filestore.tier]] += shared.size_gib
    needs["NETWORKS"] += networks_needed(plan)
    if plan.access.via == "public":
        needs["STATIC_ADDRESSES"] += 1
    return needs


PROGRAM = "gcloud"
"""The cloud's command-line tool."""


def _base_image(plan: ClusterPlan) -> str:
    """Return the base image and the stack's project.

    The region is not included, because a baked image is available in all regions of its project.
    """
    spec = plan.platform_spec(GcpSpec)
    return f"{spec.base_image(str(plan.image.reference))} {spec.project}"


def _tunnel(plan: ClusterPlan) -> Tunnel:
    port = plan.platform_spec(GcpSpec).iap_port
    return Tunnel(program=PROGRAM, port=port, option="cluster.platform.iap_port")


FACTS = PlatformFacts(
    baking=Baking(base=_base_image),
    # Maximum size of a metadata value in bytes.
    user_data_limit=256 * 1024,
    checks=(*checks_in(rules), *access_rules("gcp"), *image_rules("gcp")),
    quotas=stack_quotas,
    tunnel=_tunnel,
    # Limit of Persistent Disk (Google, "About Persistent Disk").
    largest_disk_gib=65536,
    billed={
        "gcp:compute/instance:Instance": "machine",
        "gcp:compute/disk:Disk": "disk",
        "gcp:filestore/instance:Instance": "Filestore",
        "gcp:compute/routerNat:RouterNat": "Cloud NAT",
        "gcp:compute/address:Address": "reserved address",
    },
    storage_types=frozenset({"gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"}),
)
