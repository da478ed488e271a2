"""The simulated clouds without an engine: places, refusals, data sources, labels and outputs."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.cloud.azure import Azure
from offline.cloud.cloud import Cloud, refused_address
from offline.cloud.faults import FILE, deallocated, evicted
from offline.cloud.gcp import Gcp
from offline.cloud.making import Made, preview_outputs
from offline.cloud.outputs import host_key, kept_outputs
from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties
from tests.offline.cloud.stack import TestStack

AZURE, GCP = Azure(), Gcp()
GCP.configure({"project": "p", "zone": "us-central1-a", "defaultLabels": '{"team": "a", "own": "no"}'})

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

INSTANCE = "gcp:compute/instance:Instance"
ID = "projects/p/zones/us-central1-a/instances/head"
ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
PLACE: Properties = {"project": "p", "zone": "us-central1-a"}
KEY: Properties = {"name": "head", "variableKey": "hostkeys/ssh-ed25519", **PLACE}
PORT: Properties = {"instance": "head", "port": 1.0, **PLACE}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("test", tmp_path)


@pytest.fixture
def head(world: World) -> Record:
    """A running machine on Google Cloud."""
    inputs: Properties = {"metadata": {"enable-guest-attributes": "TRUE"}, "desiredStatus": "RUNNING"}
    outputs: Properties = {"currentStatus": "RUNNING", "desiredStatus": "RUNNING"}
    found = Record(ID, INSTANCE, "urn:pulumi:s::p::t::head", inputs, outputs)
    world.put(found)
    return found


def record(token: str, identity: str, **inputs: Any) -> Record:
    return Record(id=identity, token=token, urn="urn", inputs=inputs, outputs=dict(inputs))


def refused(world: World, token: str, before: Record | None = None, **inputs: Any) -> str:
    return AZURE.refused_write(record(token, MACHINE, **inputs), before, world)


@pytest.mark.parametrize(
    ("cloud", "inputs", "accepted"),
    [
        *((AZURE, {"location": place}, True) for place in ("", "eastus", "South Central US", "global")),
        *((GCP, {"zone": place}, True) for place in ("", "us-central1-f", "projects/p/zones/europe-west4-a")),
        (AZURE, {"location": "mars"}, False),
        (GCP, {"zone": "us-central1-d"}, False),
    ],
)
def test_unknown_regions_and_zones_are_refused(cloud: Cloud, inputs: Properties, accepted: bool) -> None:
    assert (cloud.refused_location(inputs) == "") is accepted


@pytest.mark.engine
def test_an_unknown_zone_fails_the_update(stack: TestStack) -> None:
    stack.write('made("gcp:compute/disk:Disk", "disk", name="disk", zone="us-central1-d", size=10)', raw=True)
    run = stack.up()
    assert run.code != 0
    assert "Invalid value for field 'zone': 'us-central1-d'" in run.text, run
    assert stack.kinds == []


@pytest.mark.parametrize(
    ("address", "ranges", "reason"),
    [
        ("10.0.0.4", ["10.0.0.0/24"], ""),
        ("10.0.0.3", ["10.0.0.0/24"], "reserved by the cloud. Fix: choose an address from 10.0.0.4 to 10.0.0.254"),
        ("10.0.0.255", ["10.0.0.0/24"], "reserved"),
        ("10.0.1.4", ["10.0.0.0/24"], "not in the subnet's range 10.0.0.0/24"),
        ("10.0.1.4", ["10.0.0.0/24", "10.0.1.0/24"], ""),
        ("10.0.0.9", ["10.0.0.0/24"], "in use"),
        ("10.0.0.9", [], "in use"),
        ("ten", ["10.0.0.0/24"], "Fix: write an IPv4 address"),
    ],
)
def test_addresses(address: str, ranges: list[str], reason: str) -> None:
    found = refused_address(address, ranges, (4, 1), taken=address == "10.0.0.9")
    assert reason in found
    assert bool(found) == bool(reason)


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
    command = record(RUN_COMMAND, f"{MACHINE}/runCommands/key")
    world.put(record(VM, MACHINE))
    assert AZURE.refused_write(command, None, world) == AZURE.refused_deletion(command, world) == ""
    world.put(deallocated(record(VM, MACHINE)))
    assert "when the VM is not running" in AZURE.refused_write(command, None, world)
    assert "when the VM is not running" in AZURE.refused_deletion(command, world)
    assert AZURE.refused_deletion(record(VM, MACHINE), world) == ""


def test_a_deallocated_machine_has_no_disk_size() -> None:
    left = evicted(record(VM, MACHINE, evictionPolicy="Deallocate", **DISKS))
    assert left is not None
    for properties in (left.inputs, left.outputs):
        assert properties["storageProfile"] == {
            "osDisk": {"caching": "ReadOnly", "managedDisk": {}},
            "dataDisks": [{"lun": 0, "managedDisk": {"id": "d"}}],
        }


@pytest.mark.parametrize(
    ("inputs", "deleted"),
    [
        ({"scheduling": {"instanceTerminationAction": "STOP"}}, False),
        ({"scheduling": {"instanceTerminationAction": "DELETE"}}, True),
        ({"evictionPolicy": "Delete"}, True),
        ({"evictionPolicy": "Deallocate"}, False),
    ],
)
def test_an_eviction_stops_or_deletes_a_machine(inputs: dict[str, Any], deleted: bool) -> None:
    assert (evicted(record(INSTANCE, ID, **inputs)) is None) is deleted


def test_a_new_machine_publishes_its_key_later(world: World, head: Record) -> None:
    answers = [GCP.functions[ATTRIBUTES](world, KEY) for _ in range(4)]
    assert answers[:2] == [{}, {}]
    assert str(answers[3]["variableValue"]).startswith("AAAA")
    consoles = [str(GCP.functions[CONSOLE](world, PORT)["contents"]) for _ in range(3)]
    assert "trainyard-hostkey" not in consoles[0]
    assert f"\ntrainyard-hostkey: ssh-ed25519 {answers[3]['variableValue']}\r\n" in consoles[2]


def test_a_missing_machine_is_not_found(world: World) -> None:
    for token, arguments in ((ATTRIBUTES, KEY), (CONSOLE, PORT)):
        with pytest.raises(ResourceError, match=r"instances/head not found$"):
            GCP.functions[token](world, arguments)


def test_a_stopped_machine_has_no_attributes_and_no_console(world: World, head: Record) -> None:
    for _ in range(3):
        GCP.functions[ATTRIBUTES](world, KEY)
    stopped = evicted(head)
    assert stopped
    assert stopped.inputs["desiredStatus"] == "TERMINATED"
    world.put(stopped)
    assert GCP.functions[ATTRIBUTES](world, KEY) == {}
    with pytest.raises(ResourceError, match="is not ready"):
        GCP.functions[CONSOLE](world, PORT)


def test_attributes_are_empty_if_not_published(world: World, head: Record) -> None:
    (world.folder / FILE).write_text(yaml.safe_dump([{"fault": "unpublished", "name": "head"}]))
    assert [GCP.functions[ATTRIBUTES](world, KEY) for _ in range(4)] == [{}] * 4
    world.put(replace(head, inputs={}))
    (world.folder / FILE).unlink()
    assert GCP.functions[ATTRIBUTES](world, KEY) == {}


def test_a_host_key_is_valid_and_contains_offline() -> None:
    kind, text = host_key("machine").split()
    blob = base64.b64decode(text, validate=True)
    assert (blob[4:15].decode(), len(blob)) == (kind, 4 + 11 + 4 + 32)
    assert "offline" in text
    assert host_key("machine") != host_key("other")


def test_default_labels_are_added_to_labels() -> None:
    disk = GCP.sdk.describe("gcp:compute/disk:Disk")
    checked = GCP.checked(disk, {"labels": {"own": "yes"}})
    assert checked["labels"] == {"team": "a", "own": "yes"}
    labels = {"team": "a", "own": "yes", "goog-pulumi-provisioned": "true"}
    assert GCP.given(disk, checked)["effectiveLabels"] == labels
    network = GCP.sdk.describe("gcp:compute/network:Network")
    assert GCP.checked(network, {}) == {}


def test_an_update_keeps_outputs_of_the_cloud() -> None:
    old: Properties = {"size": 1.0, "cards": [{"ip": "10.0.0.4", "nat": {}}], "gone": "x"}
    outputs: Properties = {**old, "cards": [{"ip": "10.0.0.4", "nat": {"at": "1.2.3.4"}, "name": "nic0"}], "link": "l"}
    new: Properties = {"size": 2.0, "cards": [{"ip": "10.0.0.4"}, {"ip": "10.0.1.4"}]}
    assert kept_outputs(old, outputs, new) == {
        "size": 2.0,
        "cards": [{"ip": "10.0.0.4", "name": "nic0"}, {"ip": "10.0.1.4"}],
        "link": "l",
    }


def test_a_preview_of_an_update_has_the_machines_id() -> None:
    described = GCP.sdk.describe(INSTANCE)
    old: Properties = {"name": "head", "machineType": "a", "zone": "z"}
    made = Made(old, {**old, "instanceId": "42", "selfLink": "l"})
    planned = preview_outputs(GCP, described, {**old, "machineType": "b"}, made)
    assert (planned["instanceId"], planned["selfLink"], planned["machineType"]) == ("42", "l", "b")


@pytest.mark.parametrize(
    ("token", "inputs", "identity"),
    [
        ("gcp:compute/image:Image", {"name": "i"}, "projects/p/global/images/i"),
        (
            "azure-native:keyvault:Secret",
            {"resourceGroupName": "g", "vaultName": "v", "secretName": "s"},
            "/resourceGroups/g/providers/Microsoft.Keyvault/vaults/v/secrets/s",
        ),
    ],
)
def test_a_type_without_rules_has_an_id(token: str, inputs: Properties, identity: str) -> None:
    cloud: Cloud = GCP if token.startswith("gcp") else AZURE
    assert cloud.identity(cloud.sdk.describe(token), inputs).endswith(identity)
