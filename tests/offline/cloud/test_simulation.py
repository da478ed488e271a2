"""The simulated clouds without an engine: checks of inputs, rules for changes, refusals, resources and faults."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.__main__ import main
from offline.boot.description import nfs_server
from offline.cloud.azure import Azure
from offline.cloud.checking import Checker
from offline.cloud.cloud import Cloud, refused_address
from offline.cloud.faults import (
    NOTICE,
    Fault,
    booted,
    changed_outside,
    deallocated,
    evicted,
    is_announced,
    notice,
    strikes,
)
from offline.cloud.gcp import Gcp
from offline.cloud.making import is_running
from offline.cloud.outputs import kept_outputs
from offline.cloud.sdk import Kind, ListOf, Named
from offline.cloud.world import ENVIRONMENT, Record, World, with_secrets
from offline.protocol import ResourceError
from offline.values import ASSET, MARK, SECRET, UNKNOWN, Properties, Value
from tests.offline.cloud.stack import ROOT

AZURE, GCP = Azure(), Gcp()
CLOUDS: dict[str, Cloud] = {"azure-native": AZURE, "gcp": GCP}

VM = "azure-native:compute:VirtualMachine"
INSTANCE = "gcp:compute/instance:Instance"
FIREWALL = "gcp:compute/firewall:Firewall"
NETWORK = "gcp:compute/network:Network"
GROUP: Properties = {"resourceGroupName": "g"}
MACHINE: Properties = {"machineType": "a", "bootDisk": {}, "networkInterfaces": []}

MISSPELT_CARD: Properties = {"networkInterfaces": [{"accessConfigs": [{"natIpp": "x"}]}]}
MISTAKEN: list[tuple[str, Any, str, str]] = [
    (VM, {**GROUP, "osProfil": {}}, "osProfil", "Fix: write osProfile (os_profile in Python)"),
    (VM, {**GROUP, "osProfile": {"customDta": "x"}}, "osProfile.customDta", "(custom_data in Python)"),
    (VM, {**GROUP, "priority": "Spott"}, "priority", '"Spott" is not one of Regular, Low, Spot. Fix: write "Spot"'),
    (VM, {**GROUP, "osProfile": []}, "osProfile", "must be an object (OSProfileArgs), but is a list"),
    (VM, {**GROUP, "zones": [1.0]}, "zones[0]", "must be a string, but is the number 1"),
    (VM, {**GROUP, "tags": {"a": True}}, 'tags["a"]', "must be a string, but is true"),
    (VM, {}, "resourceGroupName", "is required. Fix: set resource_group_name"),
    (INSTANCE, {**MACHINE, **MISSPELT_CARD}, "networkInterfaces[0].accessConfigs[0].natIpp", "Fix: write natIp"),
    (FIREWALL, {"network": "n", "direction": "INGRES"}, "direction", 'Fix: write "INGRESS"'),
    (FIREWALL, {"network": "n", "allows": [{"ports": ["22"]}]}, "allows[0].protocol", "is required"),
    (NETWORK, {"mtu": 1460.5}, "mtu", "must be a whole number"),
    (NETWORK, {"xyzzy": 1.0}, "xyzzy", "Fix: remove it, or use one of autoCreateSubnetworks, "),
    (NETWORK, {"autoCreateSubnetworks": "false"}, "autoCreateSubnetworks", "must be true or false"),
    ("gcp:storage/bucketObject:BucketObject", {"bucket": "b", "source": "f"}, "source", "asset or archive"),
]
RIGHT: list[tuple[str, Any]] = [
    (VM, {**GROUP, "priority": "spot", "hardwareProfile": {"vmSize": "Standard_ND96isr_H100_v5"}}),
    (VM, {**GROUP, "securityProfile": {"securityType": "Standard"}}),
    (VM, {**GROUP, "osProfile": UNKNOWN, "zones": [UNKNOWN], "priority": UNKNOWN, "tags": None}),
    (VM, {**GROUP, "osProfile": {MARK: SECRET, "value": {"customData": {MARK: SECRET, "value": "x"}}}}),
    (INSTANCE, {**MACHINE, "__defaults": [], "version": "10.2.0", "metadata": {"anything": "x"}}),
    (NETWORK, {"mtu": 1460.0}),
    ("gcp:storage/bucketObject:BucketObject", {"bucket": "b", "source": {MARK: ASSET, "text": "x"}}),
]


def failures(token: str, inputs: Properties) -> dict[str, str]:
    cloud = CLOUDS[token.partition(":")[0]]
    described = cloud.sdk.describe(token)
    checker = Checker(cloud.sdk, described.folder, cloud.rules.values)
    return {found.property: found.reason for found in checker.object(described.inputs, inputs)}


@pytest.mark.parametrize(("token", "inputs", "path", "reason"), MISTAKEN)
def test_a_wrong_input_is_refused(token: str, inputs: Any, path: str, reason: str) -> None:
    found = failures(token, inputs)
    assert list(found) == [path]
    assert reason in found[path]


@pytest.mark.parametrize(("token", "inputs"), RIGHT)
def test_a_correct_input_is_accepted(token: str, inputs: Any) -> None:
    assert failures(token, inputs) == {}


@pytest.mark.parametrize("package", CLOUDS)
def test_every_thirtieth_type_of_the_sdk_can_be_parsed(package: str) -> None:
    sdk = CLOUDS[package].sdk
    for token in sdk.tokens[::30]:
        described = sdk.describe(token)
        assert described.inputs, token
        assert described.outputs, token


SCHEMA: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("gcp_schema.yaml").read_text())
BEYOND: dict[str, dict[str, str]] = {
    "gcp:compute/instance:Instance": {
        "metadataStartupScript": "CustomizeDiff: ForceNewIf, unless the script is moved from or to metadata",
        "networkInterfaces.networkIp": "CustomizeDiff: forceNewIfNetworkIPNotUpdatable, unless the network changes too",
    },
    "gcp:compute/resourcePolicy:ResourcePolicy": {"name": "part of the id, and the schema has no update method for it"},
    "gcp:filestore/instance:Instance": {"name": "part of the id, and the schema has no update method for it"},
}
"""Paths that replace a resource for reasons other than ForceNew. CustomizeDiff: read 2026-11-22 in
terraform-provider-google-beta@93c65b2d60fe, services/compute/resource_compute_instance.go."""


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def pulumi_path(token: str, path: str) -> str:
    """Convert a path from the provider's schema to the SDK's path, for example network_interface.vlan."""
    described = GCP.sdk.describe(token)
    shape, names = described.inputs, list[str]()
    for part in map(camel, path.split(".")):
        found = [name for name in (part, f"{part}s", f"{part}es", f"{part[:-1]}ies") if name in shape]
        assert found, f"{token} has no {path}"
        names.append(found[0])
        kind = element(shape[found[0]].kind)
        shape = (GCP.sdk.input_shape(described.folder, kind) if isinstance(kind, Named) else None) or {}
    return ".".join(names)


def element(kind: Kind) -> Kind:
    return element(kind.item) if isinstance(kind, ListOf) else kind


@pytest.mark.parametrize("resource", SCHEMA)
def test_the_rules_have_all_paths_of_the_schema(resource: str) -> None:
    row = SCHEMA[resource]
    token, partly = row["token"], row.get("partly", [])
    whole = {pulumi_path(token, path) for path in row["forces"] if path not in partly}
    topmost = {path for path in whole if not any(path.startswith(f"{other}.") for other in whole)}
    expected = topmost | {f"{pulumi_path(token, path)}.#" for path in partly}
    assert GCP.rules.of(token).replace == expected | BEYOND.get(token, {}).keys()


def test_all_types_with_rules_are_compared() -> None:
    rules = yaml.safe_load((ROOT / "offline/cloud/rules/gcp.yaml").read_text())
    assert set(rules["types"]) == {row["token"] for row in SCHEMA.values()}
    assert rules["replace"] == []


NODE = "/g/virtualMachines/node"
ID = "projects/p/global/networks/net"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("s", tmp_path)


def record(token: str, identity: str, **inputs: Any) -> Record:
    return Record(id=identity, token=token, urn="urn", inputs=inputs, outputs=dict(inputs))


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


def test_run_commands_are_refused_while_the_machine_is_off(world: World) -> None:
    command = record(f"{VM}RunCommandByVirtualMachine", f"{NODE}/runCommands/key")
    world.put(record(VM, NODE))
    assert AZURE.refused_now(command, world) == ""
    world.put(deallocated(record(VM, NODE)))
    assert "when the VM is not running" in AZURE.refused_now(command, world)
    assert AZURE.refused_now(record(VM, NODE), world) == ""


def test_an_eviction_follows_the_machines_setting() -> None:
    assert evicted(record(INSTANCE, ID, scheduling={"instanceTerminationAction": "DELETE"})) is None
    assert evicted(record(VM, NODE, evictionPolicy="Delete")) is None
    assert evicted(record(VM, NODE, evictionPolicy="Deallocate")) is not None


def test_a_resource_or_a_part_of_it_is_deleted() -> None:
    assert changed_outside(Fault("deleted"), record(FIREWALL, "projects/p/global/firewalls/f")) == []
    rules: Value = [{"name": "ssh"}, {"name": "inside"}]
    group = record("azure-native:network:NetworkSecurityGroup", "/g/rules", securityRules=rules, location="r")
    (left,) = changed_outside(Fault("deleted", part="securityRules/inside"), group)
    assert left.inputs == left.outputs == {"securityRules": [{"name": "ssh"}], "location": "r"}
    (left,) = changed_outside(Fault("deleted", part="securityRules"), group)
    assert left.inputs["securityRules"] == []


@pytest.mark.parametrize(("fault", "pause"), [("host_error", None), ("maintenance", 60.0)])
def test_a_machine_whose_host_fails_is_started_unless_it_is_spot(fault: str, pause: float | None) -> None:
    outside = Fault(fault, seconds=60)
    spot = {"automaticRestart": False, "preemptible": True}
    for machine in (
        record(INSTANCE, ID, currentStatus="RUNNING", scheduling={"automaticRestart": True}),
        record(VM, NODE, priority="Regular"),
    ):
        stopped, started = changed_outside(outside, machine)
        assert (stopped.outputs[NOTICE], notice(stopped.outputs, 30), started) == (pause, pause, machine)
        assert is_announced(stopped.outputs) is (fault == "maintenance")
    (stopped,) = changed_outside(outside, record(INSTANCE, ID, currentStatus="RUNNING", scheduling=spot))
    assert stopped.outputs["currentStatus"] == "TERMINATED"
    assert notice(machine.outputs, 30) == 30


def test_the_services_of_a_booted_machine_are_slow_or_late() -> None:
    server = nfs_server("id", "shared", "198.51.100.7", "/shared", [])
    late = booted(server, [Fault("late_storage", seconds=120), Fault("slow_metadata", seconds=30)])
    assert late.metadata_delay == 30
    assert late.first_boot[-len(server.first_boot) :] == server.first_boot
    assert r"printf '[Service]\nExecStartPre=/bin/sleep 120\n'" in "\n".join(late.first_boot)
    assert booted(server, []) == server


@pytest.mark.parametrize(
    ("encrypted", "service", "has_access"),
    [(False, "Microsoft.Storage", True), (True, "Microsoft.Storage", False), (False, "Microsoft.Sql", False)],
)
def test_azure_files_are_exported_to_a_subnet(world: World, encrypted: bool, service: str, has_access: bool) -> None:
    subnet, account = "/subscriptions/s/subnets/nodes", "/subscriptions/s/storageAccounts/abc"
    rules: Value = {"virtualNetworkRules": [{"virtualNetworkResourceId": subnet}]}
    services: Value = [{"service": service}]
    world.put(record("azure-native:network:Subnet", subnet, addressPrefix="10.77.0.0/20", serviceEndpoints=services))
    facts: Properties = {"enableHttpsTrafficOnly": encrypted, "networkRuleSet": rules}
    world.put(record("azure-native:storage:StorageAccount", account, **facts))
    share = record("azure-native:storage:FileShare", f"{account}/fileServices/default/shares/shared")
    server = AZURE.machine(share, world)
    assert server
    commands = "\n".join(server.first_boot)
    assert "mkdir -p /abc/shared" in commands
    assert ("10.77.0.0/20(rw,sync,no_subtree_check,root_squash" in commands) is has_access


def test_a_started_machine_has_its_disk_properties_again(world: World) -> None:
    disks: Properties = {"storageProfile": {"osDisk": {"diskSizeGB": 64, "managedDisk": {"storageAccountType": "P"}}}}
    running = replace(record(VM, NODE, **disks), outputs=disks)
    world.put(running)
    stored = world.find(NODE)
    assert stored
    world.put(deallocated(stored))
    environment = {**os.environ, ENVIRONMENT: str(world.folder.parent)}
    command = [str(ROOT / "offline" / "programs" / "az"), "vm", "start", "--ids"]
    subprocess.run([*command, NODE], env=environment, check=True, timeout=60)
    assert world.find(NODE) == stored
    missing = subprocess.run(
        [*command, f"{NODE}9"], check=False, env=environment, text=True, capture_output=True, timeout=60
    )
    assert (missing.returncode, "was not found" in missing.stderr) == (1, True)


def test_an_update_keeps_outputs_of_the_cloud() -> None:
    old: Properties = {"size": 1.0, "cards": [{"ip": "10.0.0.4", "nat": {}}], "gone": "x"}
    outputs: Properties = {**old, "cards": [{"ip": "10.0.0.4", "nat": {"at": "1.2.3.4"}, "name": "nic0"}], "link": "l"}
    new: Properties = {"size": 2.0, "cards": [{"ip": "10.0.0.4"}, {"ip": "10.0.1.4"}]}
    assert kept_outputs(old, outputs, new) == {
        "size": 2.0,
        "cards": [{"ip": "10.0.0.4", "name": "nic0"}, {"ip": "10.0.1.4"}],
        "link": "l",
    }


@pytest.mark.parametrize(
    ("token", "inputs", "identity"),
    [
        ("gcp:compute/image:Image", {"name": "i"}, "/global/images/i"),
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


def network(inputs: Properties, made_by: int = 0) -> Record:
    return Record(ID, "gcp:compute/network:Network", "urn:pulumi:s::p::t::net", inputs, {}, made_by)


def test_secrets_are_only_in_the_engines_state(world: World, tmp_path: Path) -> None:
    hidden: Value = {MARK: SECRET, "value": "hush"}
    world.put(network({"plain": "seen", "deep": {"list": [hidden]}, "top": hidden}))
    assert all("hush" not in file.read_text() for file in tmp_path.rglob("*.json"))
    found = world.find(ID.upper())
    assert found
    assert found.inputs["plain"] == "seen"
    known: Properties = {"deep": {"list": [hidden]}, "top": hidden, "plain": "old"}
    assert with_secrets(found.inputs, known) == {"deep": {"list": [hidden]}, "top": hidden, "plain": "seen"}


def test_the_last_complete_write_is_read(world: World, tmp_path: Path) -> None:
    for number in range(20):
        world.put(network({"number": number}))
        found = world.find(ID)
        assert found
        assert found.inputs == {"number": number}
    (file,) = (tmp_path / "s" / "resources").iterdir()
    file.with_name(f".{file.name}.1.1").write_text('{"id": "half')
    assert [found.id for found in world.records()] == [ID]
    world.remove(ID)
    world.remove(ID)
    assert world.find(ID) is None


def test_related_resources_are_found_by_the_index(world: World) -> None:
    group, card = "/groups/g", "/groups/g/cards/card"
    world.put(Record(group, "t", "u", {}, {}))
    world.put(Record(card, "t", "u", {}, {}, uses=["/nets/n"], claims=["/nets/n#10.0.0.4"]))
    for key in ("/NETS/n", "/nets/n#10.0.0.4", group):
        assert [found.id for found in world.linked(key)] == [card]
    # An update removes outdated references from the index.
    world.put(Record(card, "t", "u", {}, {}))
    assert list(world.linked("/nets/n")) == list(world.linked("/nets/n#10.0.0.4")) == []
    world.remove(card)
    assert list(world.linked(group)) == []


def test_the_resources_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_OFFLINE", str(tmp_path))
    assert main(["list", "s"]) == 1
    assert f"{tmp_path}/s does not exist. Fix: " in capsys.readouterr().err
    World("s").put(network({}, made_by=1))
    assert main(["list", "s"]) == 0
    assert capsys.readouterr().out.split() == ["unfinished", "gcp:compute/network:Network", ID]


def test_faults_are_counted_across_processes(tmp_path: Path) -> None:
    def met(name: str) -> list[str]:
        return [fault.fault for fault in strikes(World("s", tmp_path), "create", "gcp:x:Instance", name)]

    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', skip: 1, times: 2}\n")
    found = [met(name) for name in ("gpu-0", "head", "gpu-1", "gpu-2", "gpu-3")]
    assert found == [[], [], ["stockout"], ["stockout"], []]
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', times: 1}\n")
    assert (met("gpu-0"), met("gpu-1")) == (["stockout"], [])


def test_a_live_process_runs_and_an_ended_one_does_not() -> None:
    assert is_running(os.getpid())
    child = subprocess.Popen(["true"])
    # With WNOWAIT, the child process remains a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(child.pid, 0)
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not YAML"),
        ("fault: slow", "must be a list"),
        ("- {fault: stokout}", "entry 1: `fault` must be one of stockout, slow"),
        ("- {fault: slow, second: 2}", "entry 1: unknown second"),
    ],
)
def test_a_wrong_file_of_faults_is_refused(world: World, text: str, problem: str) -> None:
    world.folder.mkdir()
    (world.folder / "faults.yaml").write_text(text)
    with pytest.raises(ResourceError, match=problem):
        strikes(world, "create", "gcp:x:Instance", "gpu-0")
