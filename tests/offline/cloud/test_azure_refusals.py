"""Requests that the simulated Azure rejects because of other resources or previous states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline.cloud.azure_refusals import Attempt, deletion_refusal, refusal
from offline.cloud.drift import deallocated, evicted
from offline.cloud.world import Record, World

COMPUTE = "azure-native:compute"
VM = f"{COMPUTE}:VirtualMachine"
RUN_COMMAND = f"{COMPUTE}:VirtualMachineRunCommandByVirtualMachine"
MACHINE = "/g/virtualMachines/node"
DISKS = {
    "storageProfile": {
        "osDisk": {"caching": "ReadOnly", "diskSizeGB": 256, "managedDisk": {"storageAccountType": "Premium_LRS"}},
        "dataDisks": [{"lun": 0, "diskSizeGB": 1024, "managedDisk": {"id": "d", "storageAccountType": "Premium_LRS"}}],
    },
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty cloud."""
    return World("test", tmp_path)


def record(token: str, identity: str, **inputs: Any) -> Record:
    return Record(id=identity, token=token, urn="urn", inputs=inputs, outputs=dict(inputs))


def refused(world: World, token: str, before: Record | None = None, **inputs: Any) -> str:
    return refusal(token, Attempt(MACHINE, inputs, before, world))


@pytest.mark.parametrize(
    ("mode", "single", "accepted"),
    [("Flexible", False, True), ("Flexible", True, False), ("Flexible", None, False), ("Uniform", False, False)],
)
def test_machines_join_flexible_sets_without_placement_group(
    world: World, mode: str, single: bool | None, accepted: bool
) -> None:
    world.put(record(f"{COMPUTE}:VirtualMachineScaleSet", "/g/s", orchestrationMode=mode, singlePlacementGroup=single))
    assert (refused(world, VM, virtualMachineScaleSet={"id": "/g/s"}) == "") is accepted


@pytest.mark.parametrize(("faults", "updates", "accepted"), [(1, 1, True), (1, 5, False), (2, 5, True)])
def test_one_fault_domain_allows_one_update_domain(world: World, faults: int, updates: int, accepted: bool) -> None:
    counts: dict[str, Any] = {"platformFaultDomainCount": faults, "platformUpdateDomainCount": updates}
    assert (refused(world, f"{COMPUTE}:AvailabilitySet", **counts) == "") is accepted


@pytest.mark.parametrize(("size", "accepted"), [(512, False), (1024, True), (2048, True)])
def test_a_disk_cannot_shrink(world: World, size: int, accepted: bool) -> None:
    disk = record(f"{COMPUTE}:Disk", "/g/d", diskSizeGB=1024)
    assert (refused(world, disk.token, disk, diskSizeGB=size) == "") is accepted
    assert refused(world, disk.token, diskSizeGB=size) == ""


def test_the_disk_name_of_a_deleted_machine_is_refused(world: World) -> None:
    named: dict[str, Any] = {"storageProfile": {"osDisk": {"name": "node-os"}}}
    assert refused(world, VM, **named) == ""
    world.put(record(VM, MACHINE))
    world.remove(MACHINE)
    assert "already exists in resource group" in refused(world, VM, **named)
    assert refused(world, VM, storageProfile={"osDisk": {}}) == ""


def test_run_commands_are_refused_while_the_machine_is_off(world: World) -> None:
    command = f"{MACHINE}/runCommands/key"
    world.put(record(VM, MACHINE))
    attempt = Attempt(command, {}, None, world)
    assert refusal(RUN_COMMAND, attempt) == deletion_refusal(RUN_COMMAND, command, world) == ""
    world.put(deallocated(record(VM, MACHINE)))
    assert "when the VM is not running" in refusal(RUN_COMMAND, attempt)
    assert "when the VM is not running" in deletion_refusal(RUN_COMMAND, command, world)
    assert deletion_refusal(VM, MACHINE, world) == ""


def test_a_deallocated_machine_has_no_disk_size() -> None:
    left = evicted(record(VM, MACHINE, evictionPolicy="Deallocate", **DISKS))
    assert left is not None
    for properties in (left.inputs, left.outputs):
        assert properties["storageProfile"] == {
            "osDisk": {"caching": "ReadOnly", "managedDisk": {}},
            "dataDisks": [{"lun": 0, "managedDisk": {"id": "d"}}],
        }
    assert evicted(record(VM, MACHINE, evictionPolicy="Delete", **DISKS)) is None
