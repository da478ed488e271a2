"""Quotas that an Azure stack needs beside the vCPUs of its machines: public addresses and NetApp capacity. Pure.

Names: `az network list-usages` and `az netappfiles quota-limit list` (Microsoft.Network and Microsoft.NetApp usages),
read 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.spec import ClusterSpec

_GIB_PER_TIB = 1024


def stack_quotas(cluster: ClusterSpec) -> Mapping[str, int]:
    """Return how much of each quota the stack needs beside its machines, in the quota's own unit."""
    # The NAT gateway has an address, and so has the head or the Bastion.
    needs = {"PublicIPAddresses": 1 if cluster.access.via == "private" else 2}
    shared = cluster.storage.shared
    if shared.kind == "azure_netapp":
        needs["totalTiBsPerSubscription"] = -(-shared.size_gib // _GIB_PER_TIB)
    return needs
