"""Which container holds a group: the table of Azure's rules."""

from __future__ import annotations

import pytest

from components.platforms.azure.containers import Kind, container_of
from components.spec import GroupSpec


@pytest.mark.parametrize(
    ("placement", "capacity", "zone", "kind", "reason"),
    [
        ("none", "on_demand", None, Kind.NOTHING, "none"),
        ("none", "spot", "1", Kind.NOTHING, "none"),
        ("compact", "on_demand", None, Kind.PROXIMITY, "data centre"),
        ("same_fabric", "on_demand", None, Kind.AVAILABILITY_SET, "one fabric"),
        ("same_fabric", "on_demand", "2", Kind.SCALE_SET, "zone"),
        ("same_fabric", "spot", None, Kind.SCALE_SET, "Spot"),
        ("same_fabric", "spot", "2", Kind.SCALE_SET, "Spot"),
    ],
)
def test_container_of(placement: str, capacity: str, zone: str | None, kind: Kind, reason: str) -> None:
    group = GroupSpec.model_validate(
        {"machine": "Standard_ND96isr_H100_v5", "count": 2, "placement": placement, "capacity": {"kind": capacity}}
    )
    chosen = container_of(group, zone)
    assert chosen.kind is kind
    assert reason in chosen.reason
