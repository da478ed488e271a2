"""Tests for the placement of node groups by `placement`, capacity and zone."""

from __future__ import annotations

import pytest

from components.platforms.azure.layout import PlacementKind, placement_of
from tests.components.platforms.planning import planned


@pytest.mark.parametrize(
    ("placement", "capacity", "zone", "kind", "reason"),
    [
        ("none", "on_demand", None, PlacementKind.NONE, "none"),
        ("none", "spot", "1", PlacementKind.NONE, "none"),
        ("compact", "on_demand", None, PlacementKind.PROXIMITY, "data centre"),
        ("same_fabric", "on_demand", None, PlacementKind.AVAILABILITY_SET, "one fabric"),
        ("same_fabric", "on_demand", "2", PlacementKind.SCALE_SET, "zone"),
        ("same_fabric", "spot", None, PlacementKind.SCALE_SET, "Spot"),
        ("same_fabric", "spot", "2", PlacementKind.SCALE_SET, "Spot"),
    ],
)
def test_placement_depends_on_capacity_and_zone(
    placement: str, capacity: str, zone: str | None, kind: PlacementKind, reason: str
) -> None:
    edits = {
        "nodes__gpu__placement": placement,
        "nodes__gpu__capacity": {"kind": capacity},
        "platform__zone": zone,
    }
    chosen = placement_of(planned("azure-a100", edits).plan, "gpu")
    assert chosen.kind is kind
    assert reason in chosen.reason
