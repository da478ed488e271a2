"""Google's API for the simulated cloud, with requests like those of the official plugin."""

from __future__ import annotations

import json
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.__main__ import main
from offline.cloud.faults import FILE
from offline.cloud.gcp import API, INSTANCE, Gcp
from offline.cloud.making import Maker
from offline.cloud.official import api_environment, program
from offline.cloud.outputs import host_key
from offline.cloud.rest import ApiError, GoogleApi, Json, Request, serving
from offline.cloud.world import World
from offline.protocol import EngineLog, Operation, ResourceError, Stop

PROJECT, ZONE, REGION = "projects/p", "projects/p/zones/us-central1-f", "projects/p/regions/us-central1"
NET, SUBNET, NODE = f"{PROJECT}/global/networks/net", f"{REGION}/subnetworks/sub", f"{ZONE}/instances/node"
KEY = "hostkeys/ssh-ed25519"
MACHINE: Json = {
    "name": "node",
    "machineType": f"{ZONE}/machineTypes/a2-highgpu-8g",
    "disks": [
        {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": "projects/u/global/images/i"}},
        {"source": f"{ZONE}/disks/data", "deviceName": "shared"},
    ],
    "networkInterfaces": [{"subnetwork": SUBNET, "networkIP": "10.0.0.5", "accessConfigs": [{"natIP": "192.0.2.1"}]}],
    "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
    "tags": {"items": ["head"]},
    "scheduling": {"preemptible": True, "provisioningModel": "SPOT", "instanceTerminationAction": "STOP"},
}
ALLOWED = {"name": "inside", "network": NET, "sourceRanges": ["10.0.0.0/24"], "allowed": [{"IPProtocol": "all"}]}


class Client:
    def __init__(self, world: World) -> None:
        self._api = GoogleApi(world)

    def __call__(self, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        service = "file" if "/locations/" in path else "compute"
        return self._api.answer(Request(method, service, path, query, body or {}))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("s", tmp_path)


@pytest.fixture
def client(world: World) -> Client:
    """An API with a network, a subnet, a firewall rule and a disk."""
    made = Client(world)
    made("POST", f"{PROJECT}/global/networks", {"name": "net", "autoCreateSubnetworks": False})
    made("POST", f"{REGION}/subnetworks", {"name": "sub", "network": NET, "ipCidrRange": "10.0.0.0/24"})
    made("POST", f"{PROJECT}/global/firewalls", ALLOWED)
    made("POST", f"{ZONE}/disks", {"name": "data", "sizeGb": "100", "type": f"{ZONE}/diskTypes/pd-ssd"})
    return made


def test_a_machine_is_the_same_as_one_of_our_plugin(client: Client, world: World) -> None:
    client("POST", f"{ZONE}/instances", MACHINE)
    cloud, made = Gcp(), world.find(NODE)
    cloud.configure({"project": "p"})
    assert made
    maker = Maker(cloud, world, cloud.sdk.describe(INSTANCE), Operation("urn", 0, 0, EngineLog(""), Stop()))
    world.remove(NODE)
    inputs: Any = {
        "name": "node",
        "zone": "us-central1-f",
        "machineType": "a2-highgpu-8g",
        "bootDisk": {"autoDelete": True, "initializeParams": {"image": "projects/u/global/images/i"}},
        "attachedDisks": [{"source": f"{API}{ZONE}/disks/data", "deviceName": "shared"}],
        "networkInterfaces": [
            {"subnetwork": f"{API}{SUBNET}", "networkIp": "10.0.0.5", "accessConfigs": [{"natIp": "192.0.2.1"}]}
        ],
        "metadata": {"enable-guest-attributes": "TRUE"},
        "tags": ["head"],
        "scheduling": {"preemptible": True, "provisioningModel": "SPOT", "instanceTerminationAction": "STOP"},
    }
    maker.create(inputs, may_adopt=False)
    ours = world.find(NODE)
    assert ours
    assert (sorted(made.uses), made.claims) == (sorted(ours.uses), ours.claims)
    described = [cloud.machine(record, world) for record in (made, ours)]
    first, second = (replace(one, metadata={}) for one in described if one)
    assert first == second
    assert first.cards[0].firewall
    assert first.disks[0].gib == 100
    assert first.notice


def test_an_answer_contains_the_request_and_what_the_api_adds(client: Client) -> None:
    client("POST", f"{ZONE}/instances", MACHINE)
    found = client("GET", NODE)
    assert found["status"] == "RUNNING"
    assert found["machineType"] == f"{API}{ZONE}/machineTypes/a2-highgpu-8g"
    assert found["networkInterfaces"][0]["network"] == f"{API}{NET}"
    assert found["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == "192.0.2.1"
    assert found["metadata"]["items"] == MACHINE["metadata"]["items"]
    assert found["tags"]["items"] == ["head"]
    assert found["scheduling"]["onHostMaintenance"] == "MIGRATE"
    boot, data = found["disks"]
    assert client("GET", boot["source"].removeprefix(API))["sourceImage"] == f"{API}projects/u/global/images/i"
    assert data["source"] == f"{API}{ZONE}/disks/data"
    assert client("GET", f"{ZONE}/disks/data")["sizeGb"] == "100"
    assert client("GET", f"{PROJECT}/global/firewalls/inside")["allowed"] == ALLOWED["allowed"]


def test_the_rules_of_the_cloud_apply(client: Client, world: World) -> None:
    card = MACHINE["networkInterfaces"][0]
    for change, reason in (
        ({"networkInterfaces": [{**card, "networkIP": "10.0.0.1"}]}, "reserved by the cloud"),
        ({"networkInterfaces": [{**card, "subnetwork": f"{SUBNET}2"}]}, "sub2 does not exist"),
    ):
        with pytest.raises(ResourceError, match=reason):
            client("POST", f"{ZONE}/instances", {**MACHINE, **change})
    client("POST", f"{ZONE}/instances", MACHINE)
    with pytest.raises(ResourceError, match="in use"):
        client("POST", f"{ZONE}/instances", {**MACHINE, "name": "other"})
    with pytest.raises(ResourceError, match="is used by"):
        client("DELETE", SUBNET)
    (world.folder / FILE).write_text(yaml.safe_dump([{"fault": "stockout", "name": "third"}]))
    card = {**card, "networkIP": "10.0.0.7"}
    with pytest.raises(ResourceError, match="ZONE_RESOURCE_POOL_EXHAUSTED"):
        client("POST", f"{ZONE}/instances", {**MACHINE, "name": "third", "networkInterfaces": [card]})
    with pytest.raises(ApiError, match="'projects/p/global/networks/none' was not found") as missing:
        client("GET", f"{PROJECT}/global/networks/none")
    assert missing.value.status == 404


def test_some_changes_need_a_stopped_machine(client: Client) -> None:
    client("POST", f"{ZONE}/instances", MACHINE)
    larger = {"machineType": f"{ZONE}/machineTypes/a2-megagpu-16g"}
    with pytest.raises(ApiError, match="machineType can be changed only while the machine is stopped"):
        client("POST", f"{NODE}/setMachineType", larger)
    client("POST", f"{NODE}/stop")
    client("POST", f"{NODE}/setMachineType", larger)
    assert client("GET", NODE)["status"] == "TERMINATED"
    client("POST", f"{NODE}/start")
    found = client("GET", NODE)
    assert (found["status"], found["machineType"]) == ("RUNNING", f"{API}{larger['machineType']}")


def test_a_machine_and_its_boot_disk_change_in_place(client: Client, world: World) -> None:
    client("POST", f"{ZONE}/instances", MACHINE)
    boot = client("GET", NODE)["disks"][0]["source"].removeprefix(API)
    client("POST", f"{boot}/resize", {"sizeGb": "300"})
    client("POST", f"{NODE}/setTags", {"items": ["a", "b"], "fingerprint": "x"})
    client("POST", f"{NODE}/detachDisk", deviceName="shared")
    client("POST", f"{NODE}/deleteAccessConfig", networkInterface="nic0", accessConfig="external-nat")
    found = client("GET", NODE)
    assert found["networkInterfaces"][0]["accessConfigs"] == []
    client("POST", f"{NODE}/addAccessConfig", {"natIP": "192.0.2.2"}, networkInterface="nic0")
    assert client("GET", NODE)["networkInterfaces"][0]["accessConfigs"][0]["natIP"] == "192.0.2.2"
    assert (found["tags"]["items"], len(found["disks"])) == (["a", "b"], 1)
    assert client("GET", boot)["sizeGb"] == "300"
    with pytest.raises(ApiError, match="the method simulateMaintenanceEvent is not simulated"):
        client("POST", f"{NODE}/simulateMaintenanceEvent")
    client("DELETE", f"{ZONE}/disks/data")
    assert [found.id for found in world.records() if "/disks/" in found.id] == []


def test_parts_of_routers_and_policies_are_resources(client: Client, world: World) -> None:
    client("POST", f"{REGION}/routers", {"name": "router", "network": NET})
    client("PATCH", f"{REGION}/routers/router", {"name": "router", "nats": [{"name": "nat", "minPortsPerVm": 64}]})
    assert client("GET", f"{REGION}/routers/router")["nats"][0]["minPortsPerVm"] == 64
    client("POST", f"{PROJECT}/serviceAccounts", {"accountId": "a", "serviceAccount": {"displayName": "A"}})
    account = f"{PROJECT}/serviceAccounts/a@p.iam.gserviceaccount.com"
    binding = {"role": "roles/iam.serviceAccountUser", "members": ["user:a", "user:b"]}
    client("POST", f"{account}:setIamPolicy", {"policy": {"bindings": [binding]}})
    assert client("POST", f"{account}:getIamPolicy")["bindings"] == [binding]
    assert len([found for found in world.records() if found.token.endswith(":IAMMember")]) == 2
    client("POST", f"{account}:setIamPolicy", {"policy": {"bindings": []}})
    assert client("POST", f"{account}:getIamPolicy")["bindings"] == []
    client("PATCH", f"{REGION}/routers/router", {"nats": []})
    assert [found.id for found in world.records() if "/nat" in found.id] == []


def test_a_share_has_the_name_of_its_network(client: Client) -> None:
    shares, place = [{"name": "shared", "capacityGb": "1024"}], f"{PROJECT}/locations/us-central1-f/instances"
    body: Json = {"tier": "ZONAL", "fileShares": shares, "networks": [{"network": f"{API}{NET}"}]}
    client("POST", place, body, instanceId="share")
    found = client("GET", f"{place}/share")
    assert (found["fileShares"], found["networks"][0]["network"]) == (shares, "net")
    assert found["networks"][0]["ipAddresses"]


def test_a_machine_publishes_its_key_after_some_time(client: Client, world: World) -> None:
    client("POST", f"{ZONE}/instances", MACHINE)
    with pytest.raises(ApiError, match="was not found") as missing:
        client("GET", f"{NODE}/getGuestAttributes", variableKey=KEY)
    assert missing.value.status == 404
    for _ in range(2):
        console = client("GET", f"{NODE}/serialPort", port="1")["contents"]
    with pytest.raises(ApiError):
        client("GET", f"{NODE}/getGuestAttributes", variableKey=KEY)
    key = client("GET", f"{NODE}/getGuestAttributes", variableKey=KEY)["variableValue"]
    assert host_key(world.seed(NODE)) == f"ssh-ed25519 {key}"
    assert key not in console


def test_the_server_answers_with_json_and_is_no_proxy(world: World) -> None:
    with serving(world) as (url, requests):
        direct, tunnel = (HTTPConnection(url.removeprefix("http://")) for _ in range(2))
        direct.request("GET", f"/compute/v1/{NET}")
        assert json.load(direct.getresponse())["error"]["code"] == 404
        tunnel.set_tunnel("example.invalid")
        with pytest.raises(OSError, match="403"):
            tunnel.connect()
        direct.close()
    assert requests == [f"GET {NET} 404", "CONNECT example.invalid:80 403"]


def test_the_official_plugin_gets_no_credentials() -> None:
    own = {"GOOGLE_APPLICATION_CREDENTIALS": "key.json", "CLOUDSDK_CONFIG": "x", "PATH": "/bin"}
    found = api_environment(own, "http://127.0.0.1:1")
    assert own.keys() & found.keys() == {"PATH"}
    assert found["GOOGLE_COMPUTE_CUSTOM_ENDPOINT"] == "http://127.0.0.1:1/compute/v1/"
    assert {url for name, url in found.items() if name.startswith("HTTPS_")} == {"http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("stack", "code", "fix"), [("gcp-a2", 3, "pulumi plugin install resource gcp"), ("azure-a100", 2, "provider: gcp")]
)
def test_a_missing_plugin_or_another_cloud_is_reported(
    stack: str, code: int, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["official", stack, "--home", str(tmp_path)]) == code
        assert fix in capsys.readouterr().err
        ours = program("gcp", tmp_path)  # this project's plugin is not the official one
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.write_text("#!/bin/sh\n")
        ours.chmod(0o755)
