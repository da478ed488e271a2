"""Data sources, labels and outputs in the simulated Google Cloud, without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from offline.cloud.drift import evicted
from offline.cloud.faults import FILE
from offline.cloud.gcp import Gcp
from offline.cloud.making import Made, preview_outputs
from offline.cloud.outputs import kept_outputs
from offline.cloud.world import Record, World
from offline.resources import ResourceError
from offline.values import Properties

INSTANCE = "gcp:compute/instance:Instance"
ID = "projects/p/zones/us-central1-a/instances/head"
ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
PLACE: Properties = {"project": "p", "zone": "us-central1-a"}
KEY: Properties = {"name": "head", "variableKey": "hostkeys/ssh-ed25519", **PLACE}
PORT: Properties = {"instance": "head", "port": 1.0, **PLACE}


@pytest.fixture
def cloud() -> Gcp:
    gcp = Gcp()
    gcp.configure({"project": "p", "zone": "us-central1-a", "defaultLabels": '{"team": "a", "own": "no"}'})
    return gcp


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A simulated cloud with the running machine `head`."""
    found = World("s", tmp_path)
    inputs: Properties = {"metadata": {"enable-guest-attributes": "TRUE"}, "desiredStatus": "RUNNING"}
    outputs: Properties = {"currentStatus": "RUNNING", "desiredStatus": "RUNNING"}
    found.put(Record(ID, INSTANCE, "urn:pulumi:s::p::t::head", inputs, outputs))
    return found


def test_a_new_machine_publishes_its_key_later(cloud: Gcp, world: World) -> None:
    answers = [cloud.functions[ATTRIBUTES](world, KEY) for _ in range(4)]
    assert answers[:2] == [{}, {}]
    assert str(answers[3]["variableValue"]).startswith("AAAA")
    consoles = [str(cloud.functions[CONSOLE](world, PORT)["contents"]) for _ in range(3)]
    assert "trainyard-hostkey" not in consoles[0]
    assert f"\ntrainyard-hostkey: ssh-ed25519 {answers[3]['variableValue']}\r\n" in consoles[2]


def test_a_missing_machine_is_not_found(cloud: Gcp, world: World) -> None:
    for token, arguments in ((ATTRIBUTES, {**KEY, "name": "other"}), (CONSOLE, {**PORT, "instance": "other"})):
        with pytest.raises(ResourceError, match=r"instances/other not found$"):
            cloud.functions[token](world, arguments)


def test_a_stopped_machine_has_no_attributes_and_no_console(cloud: Gcp, world: World) -> None:
    for _ in range(3):
        cloud.functions[ATTRIBUTES](world, KEY)
    machine = world.find(ID)
    assert machine
    stopped = evicted(machine)
    assert stopped
    assert stopped.inputs["desiredStatus"] == "TERMINATED"
    world.put(stopped)
    assert cloud.functions[ATTRIBUTES](world, KEY) == {}
    with pytest.raises(ResourceError, match="is not ready"):
        cloud.functions[CONSOLE](world, PORT)


def test_attributes_are_empty_if_not_published(cloud: Gcp, world: World) -> None:
    (world.folder / FILE).write_text(yaml.safe_dump([{"fault": "unpublished", "name": "head"}]))
    assert [cloud.functions[ATTRIBUTES](world, KEY) for _ in range(4)] == [{}] * 4
    machine = world.find(ID)
    assert machine
    world.put(replace(machine, inputs={}))
    (world.folder / FILE).unlink()
    assert cloud.functions[ATTRIBUTES](world, KEY) == {}


def test_default_labels_are_added_to_labels(cloud: Gcp) -> None:
    disk = cloud.sdk.describe("gcp:compute/disk:Disk")
    checked = cloud.checked(disk, {"labels": {"own": "yes"}})
    assert checked["labels"] == {"team": "a", "own": "yes"}
    assert cloud.given(disk, checked)["effectiveLabels"] == {
        "team": "a",
        "own": "yes",
        "goog-pulumi-provisioned": "true",
    }
    network = cloud.sdk.describe("gcp:compute/network:Network")
    assert cloud.checked(network, {}) == {}


def test_an_update_keeps_outputs_of_the_cloud() -> None:
    old: Properties = {"size": 1.0, "cards": [{"ip": "10.0.0.4", "nat": {}}], "gone": "x"}
    outputs: Properties = {**old, "cards": [{"ip": "10.0.0.4", "nat": {"at": "1.2.3.4"}, "name": "nic0"}], "link": "l"}
    new: Properties = {"size": 2.0, "cards": [{"ip": "10.0.0.4"}, {"ip": "10.0.1.4"}]}
    assert kept_outputs(old, outputs, new) == {
        "size": 2.0,
        "cards": [{"ip": "10.0.0.4", "name": "nic0"}, {"ip": "10.0.1.4"}],
        "link": "l",
    }


def test_a_preview_of_an_update_has_the_machines_id(cloud: Gcp) -> None:
    described = cloud.sdk.describe(INSTANCE)
    old: Properties = {"name": "head", "machineType": "a", "zone": "z"}
    made = Made(old, {**old, "instanceId": "42", "selfLink": "l"})
    planned = preview_outputs(cloud, described, {**old, "machineType": "b"}, made)
    assert (planned["instanceId"], planned["selfLink"], planned["machineType"]) == ("42", "l", "b")
