"""AzurePlatform under the real engine, on a simulated Azure that holds every input against the SDK's classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.platforms.living import PlatformStack, platform_stack

pytestmark = pytest.mark.engine


@pytest.fixture
def cloud(tmp_path: Path) -> PlatformStack:
    """An empty stack. Skips where there is no Pulumi CLI."""
    return platform_stack(tmp_path, "components.platforms.azure.platform", "AzurePlatform")


def test_a_life_with_a_fabric_and_a_disk(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    up = cloud.up()
    assert up.code == 0, up
    assert len(cloud.outputs()["keys"]) == 3
    # One more node leaves the others alone.
    cloud.put("azure-a100", nodes__gpu__count=3, limits={})
    planned = cloud.preview()
    assert "+ 3 to create" in planned.text, planned
    assert "to replace" not in planned.text
    assert "to update" not in planned.text
    # New user-data is said to make new machines: Azure would refuse an update half-way. Each is asked its key anew.
    cloud.put("azure-a100", word="second")
    planned = cloud.preview()
    assert "+-6 to replace" in planned.text, planned
    assert "to update" not in planned.text
    again = cloud.up()
    assert again.code == 0, again
    careless = cloud.destroy()
    assert careless.code != 0
    assert "is protected" in careless.text
    assert cloud.kinds.count("Disk") == 1
    cloud.put("azure-a100", platform__protect_storage=False)
    assert cloud.up().code == 0
    meant = cloud.destroy()
    assert meant.code == 0, meant
    assert cloud.kinds == []


SPOT: dict[str, Any] = {"nodes__gpu__capacity": {"kind": "spot"}, "limits": {}}
FILES: dict[str, Any] = {
    "storage__shared": {"kind": "azure_files", "size_gib": 1024},
    "nodes__gpu": {"machine": "Standard_NC96ads_A100_v4", "count": 1, "placement": "compact"},
}


@pytest.mark.parametrize(
    ("stack", "edits", "kinds"),
    [
        ("azure-h100", {}, {"BastionHost", "CapacityPoolVolume", "AvailabilitySet"}),
        ("azure-h100", SPOT | {"platform__zone": "1"}, {"BastionHost", "VirtualMachineScaleSet"}),
        ("azure-a100", FILES, {"StorageAccount", "FileShare", "ProximityPlacementGroup"}),
    ],
)
def test_other_ways_to_build_one(cloud: PlatformStack, stack: str, edits: dict[str, Any], kinds: set[str]) -> None:
    cloud.put(stack, **edits)
    up = cloud.up()
    assert up.code == 0, up
    assert kinds <= set(cloud.kinds)
    again = cloud.preview()
    assert "unchanged" in again.text
    assert "to update" not in again.text, again
    assert "to replace" not in again.text, again


@pytest.mark.parametrize(
    "nodes",
    [
        {"machine": "Standard_NC96ads_A100_v4", "count": 1, "placement": "compact"},
        {"machine": "Standard_ND96amsr_A100_v4", "count": 2, "placement": "same_fabric"},
    ],
    ids=lambda nodes: nodes["placement"],
)
def test_a_stack_moves_to_another_zone(cloud: PlatformStack, nodes: dict[str, Any]) -> None:
    edits: dict[str, Any] = {"nodes__gpu": nodes, "platform__protect_storage": False}
    cloud.put("azure-a100", **edits, platform__zone="1")
    up = cloud.up()
    assert up.code == 0, up
    before = {record.token.rpartition(":")[2]: record.id for record in cloud.world.records()}
    cloud.put("azure-a100", **edits, platform__zone="2")
    moved = cloud.up()
    assert moved.code == 0, moved
    zones = [record.inputs["zones"] for record in cloud.world.records() if "zones" in record.inputs]
    assert zones
    assert all(zone == ["2"] for zone in zones)
    after = {record.token.rpartition(":")[2]: record.id for record in cloud.world.records()}
    assert {kind for kind in before if before[kind] != after[kind]} == {"Disk"}
    settled = cloud.preview()
    assert "to update" not in settled.text
    assert "to replace" not in settled.text
