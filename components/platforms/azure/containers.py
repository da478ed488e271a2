"""What holds a group's machines together in Azure, and why that. Pure: a table of Azure's rules.

Machines speak InfiniBand to one another only inside one scale set or availability set; that is the isolation boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from components.spec import GroupSpec


class Kind(StrEnum):
    """Ways to keep machines together."""

    NOTHING = "no container"
    AVAILABILITY_SET = "availability set"
    SCALE_SET = "flexible scale set with a single placement group"
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
