"""Input checks: one run reports all mistakes, each with its path and the closest correct name."""

from __future__ import annotations

from typing import Any

import pytest

from offline.cloud.azure import Azure
from offline.cloud.checking import Checker
from offline.cloud.cloud import Cloud
from offline.cloud.gcp import Gcp
from offline.values import ASSET, MARK, SECRET, UNKNOWN, Properties
from tests.offline.cloud.stack import TestStack

CLOUDS: dict[str, Cloud] = {"azure-native": Azure(), "gcp": Gcp()}

VM = "azure-native:compute:VirtualMachine"
NIC = "azure-native:network:NetworkInterface"
NSG = "azure-native:network:NetworkSecurityGroup"
INSTANCE = "gcp:compute/instance:Instance"
FIREWALL = "gcp:compute/firewall:Firewall"
NETWORK = "gcp:compute/network:Network"
GROUP: Properties = {"resourceGroupName": "g"}
MACHINE: Properties = {"machineType": "a", "bootDisk": {}, "networkInterfaces": []}

MISTAKEN: list[tuple[str, Any, str, str]] = [
    (VM, {**GROUP, "osProfil": {}}, "osProfil", "Fix: write osProfile (os_profile in Python)"),
    (VM, {**GROUP, "osProfile": {"custom_data": "x"}}, "osProfile.custom_data", "Fix: write customData"),
    (VM, {**GROUP, "osProfile": {"customDta": "x"}}, "osProfile.customDta", "(custom_data in Python)"),
    (VM, {**GROUP, "priority": "Spott"}, "priority", '"Spott" is not one of Regular, Low, Spot. Fix: write "Spot"'),
    (VM, {**GROUP, "osProfile": []}, "osProfile", "must be an object (OSProfileArgs), but is a list"),
    (VM, {**GROUP, "zones": "1"}, "zones", 'must be a list, but is the text "1"'),
    (VM, {**GROUP, "zones": [1.0]}, "zones[0]", "must be a string, but is the number 1"),
    (VM, {**GROUP, "tags": {"a": True}}, 'tags["a"]', "must be a string, but is true"),
    (VM, {}, "resourceGroupName", "is required. Fix: set resource_group_name"),
    (
        NIC,
        {**GROUP, "ipConfigurations": [{"privateIPAddres": "10.0.0.4"}]},
        "ipConfigurations[0].privateIPAddres",
        "Fix: write privateIPAddress (private_ip_address in Python)",
    ),
    (
        NSG,
        {
            **GROUP,
            "securityRules": [{"access": "Alow", "direction": "Inbound", "protocol": "Tcp", "priority": 1.0}],
        },
        "securityRules[0].access",
        'Fix: write "Allow"',
    ),
    (INSTANCE, {**MACHINE, "schedulng": {}}, "schedulng", "Fix: write scheduling"),
    (
        INSTANCE,
        {**MACHINE, "networkInterfaces": [{"accessConfigs": [{"natIpp": "x"}]}]},
        "networkInterfaces[0].accessConfigs[0].natIpp",
        "Fix: write natIp",
    ),
    (INSTANCE, {**MACHINE, "machineType": None}, "machineType", "is required"),
    (FIREWALL, {"network": "n", "direction": "INGRES"}, "direction", 'Fix: write "INGRESS"'),
    (FIREWALL, {"network": "n", "allows": [{"ports": ["22"]}]}, "allows[0].protocol", "is required"),
    (NETWORK, {"mtu": 1460.5}, "mtu", "must be a whole number"),
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
    """Return the problems by path."""
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


def test_an_unknown_name_lists_the_properties() -> None:
    reason = failures(NETWORK, {"xyzzy": 1.0})["xyzzy"]
    assert "Fix: remove it, or use one of autoCreateSubnetworks, " in reason
    assert reason.endswith("more")


@pytest.mark.parametrize("package", CLOUDS)
def test_every_thirtieth_type_of_the_sdk_can_be_parsed(package: str) -> None:
    sdk = CLOUDS[package].sdk
    for token in sdk.tokens[::30]:
        described = sdk.describe(token)
        assert described.inputs, token
        assert described.outputs, token


MISTAKES = """
made("azure-native:compute:VirtualMachine", "vm", osProfile={"customDta": "x"}, priority="Spott", zones="1")
"""


@pytest.mark.engine
def test_all_mistakes_are_shown_before_any_change(stack: TestStack) -> None:
    stack.write(MISTAKES, raw=True)
    run = stack.up()
    assert run.code != 0
    for message in (
        "property osProfile.customDta",
        "write customData (custom_data in Python)",
        '"Spott" is not one of Regular, Low, Spot. Fix: write "Spot"',
        "is required. Fix: set resource_group_name",
        'must be a list, but is the text "1"',
    ):
        assert message in run.text, run
    assert stack.kinds == []


@pytest.mark.engine
@pytest.mark.full
def test_unknown_types_and_functions_are_refused(stack: TestStack) -> None:
    stack.write('made("azure-native:compute:VirtualMachin", "vm")', raw=True)
    assert "Fix: use azure-native:compute:VirtualMachine" in stack.preview().text
    stack.write('pulumi.runtime.invoke("gcp:compute/getRegions:getRegions", {})', raw=True)
    run = stack.preview()
    assert run.code != 0
    assert "not supported by the offline gcp" in run.text
