"""Quotas that a GCP stack needs beside those of its machines: disks, Filestore, networks, addresses. Pure.

Names of compute quotas: metrics of `gcloud compute regions describe` and `gcloud compute project-info describe`
(Compute Engine API v1, Quota.metric). Which resource counts against which quota: pkg/validators/quota.go of
GoogleCloudPlatform/cluster-toolkit@1047080, read 2026-11-22. The bundled local SSDs of A2 Ultra and A3 are not counted:
no source says which quota they use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from components.platforms.gcp.families import family_of
from components.platforms.gcp.layout import networks_needed

if TYPE_CHECKING:
    from components.plan import ClusterPlan
    from components.platforms.gcp.spec import Spec
    from components.spec import ClusterSpec

DISK_QUOTAS = {"pd-balanced": "SSD_TOTAL_GB", "pd-ssd": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
"""Quota of each type of disk, in GB."""
FILESTORE_QUOTAS = {
    "BASIC_HDD": "StandardStorageGbPerRegion",
    "BASIC_SSD": "PremiumStorageGbPerRegion",
    "ZONAL": "EnterpriseStorageGibPerRegion",
    "REGIONAL": "EnterpriseStorageGibPerRegion",
    "ENTERPRISE": "EnterpriseStorageGibPerRegion",
}
"""Quota of file.googleapis.com for each tier, in GB or GiB. The source has no entry for REGIONAL."""


def stack_quotas(spec: Spec, cluster: ClusterSpec, plan: ClusterPlan) -> Mapping[str, int]:
    """Return how much of each quota the stack needs beside its machines, in the quota's own unit."""
    needs: Counter[str] = Counter()
    for host in plan.hosts:
        boot_disk = spec.boot_disk_type or family_of(host.machine.name).boot_disks[0]
        needs[DISK_QUOTAS[boot_disk]] += spec.boot_disk_gib
    shared = cluster.storage.shared
    if shared.kind == "head_nfs":
        needs["SSD_TOTAL_GB"] += shared.size_gib
    if shared.kind == "filestore":
        needs[FILESTORE_QUOTAS[spec.filestore.tier]] += shared.size_gib
    needs["NETWORKS"] += networks_needed(plan)
    if cluster.access.via == "public":
        needs["STATIC_ADDRESSES"] += 1
    return needs
