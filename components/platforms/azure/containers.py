"""Which Azure resource groups a node group's machines, and why. Pure: a table of Azure's rules.

Machines communicate over InfiniBand only within one availability set or scale set. Microsoft's comparison has, in the
row "Infiniband Networking", "No" for flexible scale sets, "Yes, single placement group only" for uniform ones and "Yes"
for availability sets (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
virtual-machine-scale-sets-orchestration-modes.md, read 2026-11-22).

A uniform set makes all its machines from one profile, so none could have its own name, address and user-data. Only a
flexible set takes Spot machines and machines in a zone. edwardsp/azcluster@09b0d6d7:bicep/modules/compute.bicep has one
for InfiniBand, with one fault domain and singlePlacementGroup false, but its machines come from the set's own profile.
Whether machines that join one by one share a fabric is unverified.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from components.spec import GroupSpec


class Kind(StrEnum):
    """Ways to keep machines together."""

    NOTHING = "no container"
    AVAILABILITY_SET = "availability set"
    SCALE_SET = "flexible scale set"
    PROXIMITY = "proximity placement group"


@dataclass(frozen=True, kw_only=True)
class Container:
    """A choice and its reason, in words for the stack's owner."""

    kind: Kind
    reason: str


def container_of(group: GroupSpec, zone: str | None) -> Container:
    """Return what holds a group's machines, by what the stack asks for."""
    if group.placement == "none":
        return Container(kind=Kind.NOTHING, reason="placement: none")
    if group.placement == "compact":
        return Container(kind=Kind.PROXIMITY, reason="placement: compact asks for one data centre")
    if group.capacity.kind == "spot":
        return Container(kind=Kind.SCALE_SET, reason="an availability set takes no Spot machines")
    if zone is not None:
        return Container(kind=Kind.SCALE_SET, reason="an availability set stands in no zone")
    return Container(
        kind=Kind.AVAILABILITY_SET,
        reason="one fabric for machines on demand; one of them can be replaced without the others",
    )
