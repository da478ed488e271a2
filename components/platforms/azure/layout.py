"""A node group's placement: an availability set, a scale set or a proximity placement group. Imports no SDK.

Machines communicate over InfiniBand only if they are in the same availability set or scale set. According to
Microsoft's comparison (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
virtual-machine-scale-sets-orchestration-modes.md, row "Infiniband Networking", read 2026-11-22), availability sets
support InfiniBand, uniform scale sets support it only with a single placement group, and flexible scale sets do not.

A uniform scale set creates all machines from one profile, so they cannot have individual names, addresses and
user-data. Spot machines and machines in a zone need a flexible scale set, because an availability set supports neither.
edwardsp/azcluster@09b0d6d7:bicep/modules/compute.bicep uses a flexible scale set for InfiniBand, with one fault domain
and singlePlacementGroup false, but creates its machines from the set's profile. It is unverified whether machines that
join a flexible scale set one by one share a fabric.
"""

from __future__ import annotations

from enum import StrEnum

from components.plan.plan import ClusterPlan
from components.platforms.azure.spec import AzureSpec


class PlacementKind(StrEnum):
    """Azure resources that place machines close together."""

    NONE = "no placement"
    AVAILABILITY_SET = "availability set"
    SCALE_SET = "flexible scale set"
    PROXIMITY = "proximity placement group"


def placement_of(plan: ClusterPlan, group: str) -> tuple[PlacementKind, str]:
    """Return a node group's placement and the reason for it. `yard preview` prints both.

    The placement depends on the group's `placement` and `capacity` and on the stack's zone.
    """
    wanted = plan.groups[group]
    if wanted.placement == "none":
        return PlacementKind.NONE, "placement: none"
    if wanted.placement == "compact":
        return PlacementKind.PROXIMITY, "placement: compact requires one data centre"
    if wanted.capacity.kind == "spot":
        return PlacementKind.SCALE_SET, "an availability set does not support Spot machines"
    if plan.platform_spec(AzureSpec).zone is not None:
        return PlacementKind.SCALE_SET, "an availability set cannot be in a zone"
    return PlacementKind.AVAILABILITY_SET, "on-demand machines share one fabric, and each can be replaced individually"
