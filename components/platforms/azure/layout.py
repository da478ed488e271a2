"""Placement of a node group: an availability set, a scale set or a proximity placement group. Imports no SDK.

Machines communicate over InfiniBand only if they are in the same availability set or scale set. Microsoft's comparison
of the two contains a row "Infiniband Networking" (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/
virtual-machine-scale-sets/virtual-machine-scale-sets-orchestration-modes.md, read 2026-11-22): "No" for flexible scale
sets, "Yes, single placement group only" for uniform scale sets, and "Yes" for availability sets.

A uniform scale set creates all machines from one profile, so a machine cannot have its own name, address and user-data.
Only a flexible scale set supports Spot machines and machines in a zone. edwardsp/azcluster@09b0d6d7:
bicep/modules/compute.bicep uses a flexible scale set for InfiniBand, with one fault domain and singlePlacementGroup
false, but creates its machines from the scale set's profile. Unverified: machines that join a flexible scale set one by
one may not share a fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from components.plan.plan import ClusterPlan
from components.platforms.azure.spec import AzureSpec


class PlacementKind(StrEnum):
    """Azure resources that place machines close together."""

    NONE = "no placement"
    AVAILABILITY_SET = "availability set"
    SCALE_SET = "flexible scale set"
    PROXIMITY = "proximity placement group"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of a node group, and the reason for it, which `yard preview` prints."""

    kind: PlacementKind
    reason: str


def placement_of(plan: ClusterPlan, group: str) -> Placement:
    """Return the placement of a node group, which depends on `placement`, `capacity` and the stack's zone."""
    wanted = plan.groups[group]
    if wanted.placement == "none":
        return Placement(kind=PlacementKind.NONE, reason="placement: none")
    if wanted.placement == "compact":
        return Placement(kind=PlacementKind.PROXIMITY, reason="placement: compact requires one data centre")
    if wanted.capacity.kind == "spot":
        return Placement(kind=PlacementKind.SCALE_SET, reason="an availability set does not support Spot machines")
    if plan.platform_spec(AzureSpec).zone is not None:
        return Placement(kind=PlacementKind.SCALE_SET, reason="an availability set cannot be in a zone")
    return Placement(
        kind=PlacementKind.AVAILABILITY_SET,
        reason="on-demand machines share one fabric, and each can be replaced individually",
    )
