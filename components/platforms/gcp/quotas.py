"""GCP quotas for resources other than machines: disks, Filestore, networks and addresses. Imports no SDK.

The names of compute quotas are the metrics of `gcloud compute regions describe` and `gcloud compute project-info
describe` (Compute Engine API v1, Quota.metric). The mapping from resources to quotas comes from pkg/validators/quota.go
in GoogleCloudPlatform/cluster-toolkit@1047080, read 2026-11-22. The bundled local SSDs of A2 Ultra and A3 are not
counted because no source states which quota they use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from components.plan.plan import ClusterPlan
from components.platforms.gcp.layout import networks_needed
from components.platforms.gcp.machine_facts import family_of
from components.platforms.gcp.spec import GcpSpec

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
    """Return how much of each quota the stack needs for resources other than machines, in the quota's unit."""
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
