"""AzurePlatform with the real engine and a simulated Azure that validates inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import PlatformStack, platform_stack

pytestmark = pytest.mark.engine


@pytest.fixture
def cloud(tmp_path: Path) -> PlatformStack:
    """An empty stack. Skips the test if the Pulumi CLI is missing."""
    return platform_stack(tmp_path, "components.platforms.azure.platform", "AzurePlatform")


SPOT: dict[str, Any] = {"nodes__gpu__capacity": {"kind": "spot"}, "limits": {}}
FILES: dict[str, Any] = {
    "storage__shared": {"kind": "azure_files", "size_gib": 1024},
    "nodes__gpu": {"machine": "Standard_NC96ads_A100_v4", "count": 1, "placement": "compact"},
}


@pytest.mark.parametrize(
    ("stack", "edits", "kinds"),
    [
        ("azure-h100", {}, {"BastionHost", "CapacityPoolVolume", "AvailabilitySet"}),
        pytest.param(
            "azure-h100",
            SPOT | {"platform__zone": "1"},
            {"BastionHost", "VirtualMachineScaleSet"},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "azure-a100", FILES, {"StorageAccount", "FileShare", "ProximityPlacementGroup"}, marks=pytest.mark.full
        ),
    ],
)
def test_a_preview_after_up_shows_no_changes(
    cloud: PlatformStack, stack: str, edits: dict[str, Any], kinds: set[str]
) -> None:
    cloud.put(stack, **edits)
    up = cloud.up()
    assert up.code == 0, up
    assert kinds <= set(cloud.kinds)
    again = cloud.preview()
    assert "unchanged" in again.text
    assert "to update" not in again.text, again
    assert "to replace" not in again.text, again


@pytest.mark.full
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


def os_disk(cloud: PlatformStack, machine: str) -> dict[str, Any]:
    profile: Any = cloud.record(machine).inputs["storageProfile"]
    found: dict[str, Any] = profile["osDisk"]
    return found


@pytest.mark.full
def test_an_evicted_node_is_kept_by_refresh_and_up(cloud: PlatformStack) -> None:
    cloud.put("azure-a100", **SPOT)
    assert cloud.up().code == 0
    before = cloud.outputs()
    cloud.faults({"fault": "evicted", "name": "opt-gpu-0"}, {"fault": "deallocated", "name": "opt-head"})
    assert cloud.refresh().code == 0
    assert "diskSizeGB" not in os_disk(cloud, "opt-gpu-0")
    planned = cloud.preview()
    assert "to replace" not in planned.text, planned.text
    assert "to update" not in planned.text, planned.text
    again = cloud.up()
    assert again.code == 0, again.text
    # The host keys of stopped machines are empty, but `up` still succeeds.
    assert cloud.outputs()["keys"] == ["", "", before["keys"][2]]
    # A stopped machine can be replaced, and the new machine has a new disk.
    cloud.put("azure-a100", **SPOT, identity="two")
    replaced = cloud.up()
    assert replaced.code == 0, replaced.text
    assert os_disk(cloud, "opt-gpu-0")["diskSizeGB"] == 256
    assert all(cloud.outputs()["keys"])


@pytest.mark.full
def test_a_head_that_was_stopped_and_started_is_unchanged(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    assert cloud.up().code == 0
    running = cloud.record("opt-head")
    cloud.faults({"fault": "deallocated", "name": "opt-head"})
    assert cloud.refresh().code == 0
    # After the start, Azure returns the disk properties again, and the plugin adds them to the inputs.
    for properties in (running.inputs, running.outputs):
        profile: Any = properties["storageProfile"]
        for disk in (profile["osDisk"], *profile["dataDisks"]):
            disk["diskSizeGB"] = 256
            disk["managedDisk"]["storageAccountType"] = "Premium_LRS"
    cloud.world.put(running)
    assert cloud.refresh().code == 0
    planned = cloud.preview()
    assert "to update" not in planned.text, planned.text
    assert "to replace" not in planned.text, planned.text


@pytest.mark.full
def test_a_node_that_is_not_running_can_be_removed(cloud: PlatformStack) -> None:
    cloud.put("azure-a100", **SPOT)
    assert cloud.up().code == 0
    cloud.faults({"fault": "evicted", "name": "opt-gpu-1"})
    assert cloud.refresh().code == 0
    cloud.put("azure-a100", **SPOT, nodes__gpu__count=1)
    fewer = cloud.up()
    assert fewer.code == 0, fewer.text
    assert cloud.kinds.count("VirtualMachineRunCommandByVirtualMachine") == 2


def test_a_larger_boot_disk_replaces_the_machines(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    assert cloud.up().code == 0
    cloud.put("azure-a100", platform__boot_disk_gib=512)
    up = cloud.up()
    assert up.code == 0, up.text
    assert [os_disk(cloud, name)["diskSizeGB"] for name in ("opt-head", "opt-gpu-0")] == [512, 512]


def test_a_smaller_shared_disk_is_refused_before_any_change(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    assert cloud.up().code == 0
    before = list(cloud.world.records())
    cloud.put("azure-a100", word="second", storage__shared__size_gib=512)
    refused = cloud.up()
    assert refused.code != 0
    assert "cluster.storage.shared.size_gib: the disk has 1024 GiB" in refused.text
    assert list(cloud.world.records()) == before
    cloud.put("azure-a100", storage__shared__size_gib=2048)
    larger = cloud.up()
    assert larger.code == 0, larger.text
    assert cloud.record("opt-shared").inputs["diskSizeGB"] == 2048
