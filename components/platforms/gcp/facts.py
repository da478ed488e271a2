"""Rules and limits for Google Cloud stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from components.plan.check import checks_in
from components.plan.plan import ClusterPlan
from components.platforms.gcp import rules
from components.platforms.gcp.layout import networks_needed
from components.platforms.gcp.spec import PORTS_PER_VM, GcpSpec, family_of
from components.platforms.registry import Baking, LineItem, PlatformFacts, Tunnel
from components.platforms.shared_rules import access_rules, image_rules

SERVICES = {
    "compute": "compute.googleapis.com",
    "filestore": "file.googleapis.com",
    "projects": "cloudresourcemanager.googleapis.com",
    "serviceaccount": "iam.googleapis.com",
}
"""Mapping from Pulumi module to the Google API that the module's types need (Google Cloud API reference, read
2026-11-22). For example, gcp:compute/instance:Instance is in the "compute" module."""

BESIDE = ("iap.googleapis.com", "cloudquotas.googleapis.com", "serviceusage.googleapis.com")
"""Additional APIs for the tunnel to the head and for `yard preview --live`, which reads quotas and services."""

ROLES = {
    "roles/compute.admin": "machines, disks, networks, firewall rules, addresses, guest attributes",
    "roles/file.editor": "Filestore",
    "roles/iam.serviceAccountAdmin": "the machines' service account",
    "roles/iam.roleAdmin": "the head's roles, only for elastic groups",
    "roles/resourcemanager.projectIamAdmin": "to give the head a role, only for elastic groups",
    "roles/iam.serviceAccountUser": "iam.serviceAccounts.actAs, to start machines with that account",
    "roles/iap.tunnelResourceAccessor": "the tunnel to the head with access.via: bastion",
    "roles/serviceusage.serviceUsageAdmin": "to enable the APIs",
    "roles/cloudquotas.viewer": "the quotas that yard preview --live reads",
}
"""Mapping from role to the resources or actions that need it (Google Cloud, "IAM basic and predefined roles reference",
read 2026-11-22)."""


def required_services() -> tuple[str, ...]:
    return tuple(sorted({*SERVICES.values(), *BESIDE}))


def enable_command(project: str, services: tuple[str, ...]) -> str:
    return f"gcloud services enable {' '.join(services)} --project {project}"


DISK_QUOTAS = {"pd-balanced": "SSD_TOTAL_GB", "pd-ssd": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
"""Mapping from disk type to its quota, which is in GB."""
FILESTORE_QUOTAS = {
    "BASIC_HDD": "StandardStorageGbPerRegion",
    "BASIC_SSD": "PremiumStorageGbPerRegion",
    "ZONAL": "EnterpriseStorageGibPerRegion",
    "REGIONAL": "EnterpriseStorageGibPerRegion",
    "ENTERPRISE": "EnterpriseStorageGibPerRegion",
}
"""Mapping from tier to its quota at file.googleapis.com, in GB or GiB. The source has no entry for REGIONAL."""


_MACHINES_PER_NAT_ADDRESS = 64512 // PORTS_PER_VM
"""Each address of Cloud NAT has 64,512 ports (Google, "IP addresses and ports", read 2026-11-27)."""


def _boot_disks(plan: ClusterPlan) -> Counter[str]:
    """Return the number of boot disks of each type."""
    chosen = plan.platform_spec(GcpSpec).boot_disk_type
    return Counter(chosen or family_of(host.machine.name).boot_disks[0] for host in plan.hosts)


def _line_items(plan: ClusterPlan) -> tuple[LineItem, ...]:
    spec, public = plan.platform_spec(GcpSpec), plan.access.via == "public"
    # Cloud NAT does not serve machines with their own public address.
    behind_nat = len(plan.hosts) - public
    others = {
        "public-address": int(public),
        "cloud-nat-machine": behind_nat,
        "cloud-nat-address": -(-behind_nat // _MACHINES_PER_NAT_ADDRESS),
        "tier-1-networking": sum(spec.uses_tier_1(host.machine) for host in plan.hosts),
    }
    return (
        *(LineItem(row=kind, count=n, boot_disk_gib=spec.boot_disk_gib) for kind, n in _boot_disks(plan).items()),
        *(LineItem(row=row, count=count) for row, count in others.items() if count),
    )


def stack_quotas(plan: ClusterPlan) -> Mapping[str, int]:
    """Return a mapping from quota to the amount that resources other than machines need, in the quota's unit.

    The names of compute quotas are the metrics of `gcloud compute regions describe` and `gcloud compute project-info
    describe` (Compute Engine API v1, Quota.metric). The assignment of resources to quotas comes from
    pkg/validators/quota.go in GoogleCloudPlatform/cluster-toolkit@1047080, read 2026-11-22. The bundled local SSDs of
    A2 Ultra and A3 are not counted, because no source states which quota they use.
    """
    spec = plan.platform_spec(GcpSpec)
    needs: Counter[str] = Counter()
    for kind, count in _boot_disks(plan).items():
        needs[DISK_QUOTAS[kind]] += count * spec.boot_disk_gib
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
    """Return the base image and the stack's project. A baked image is available in all regions of the project."""
    spec = plan.platform_spec(GcpSpec)
    return f"{spec.base_image(str(plan.image.reference))} {spec.project}"


FACTS = PlatformFacts(
    baking=Baking(base=_base_image),
    # A metadata value's maximum size in bytes.
    user_data_limit=256 * 1024,
    checks=(*checks_in(rules), *access_rules("gcp"), *image_rules("gcp")),
    quotas=stack_quotas,
    line_items=_line_items,
    tunnel=lambda plan: Tunnel(PROGRAM, plan.platform_spec(GcpSpec).iap_port, "cluster.platform.iap_port"),
    power_channel=lambda _: {"platform": "gcp"},
    # The Persistent Disk limit (Google, "About Persistent Disk").
    largest_disk_gib=65536,
    billed={
        "gcp:compute/instance:Instance": "machine",
        "gcp:compute/disk:Disk": "disk",
        "gcp:filestore/instance:Instance": "Filestore",
        "gcp:compute/routerNat:RouterNat": "Cloud NAT",
        "gcp:compute/address:Address": "reserved address",
    },
    storage_types=frozenset({"gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"}),
    rows={"gcp:compute/address:Address": "public-address"},
)
