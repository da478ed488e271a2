"""What the simulated clouds know of resource types: the SDKs' descriptions, checks of inputs, and rules for changes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.cloud.azure import Azure
from offline.cloud.checking import Checker
from offline.cloud.cloud import Cloud
from offline.cloud.gcp import Gcp
from offline.cloud.sdk import Kind, ListOf, Named, UnknownToken
from offline.values import ASSET, MARK, SECRET, UNKNOWN, Properties
from tests.offline.cloud.stack import ROOT, TestStack

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


CLASSES = {
    "azure-native:network:NetworkInterface": (
        "pulumi_azure_native.network",
        "NetworkInterface",
        "NetworkInterfaceArgs",
    ),
    "azure-native:network:VirtualNetwork": ("pulumi_azure_native.network", "VirtualNetwork", "VirtualNetworkInitArgs"),
    "azure-native:resources:ResourceGroup": ("pulumi_azure_native.resources", "ResourceGroup", "ResourceGroupArgs"),
    "gcp:filestore/instance:Instance": ("pulumi_gcp.filestore", "Instance", "InstanceArgs"),
    "gcp:serviceaccount/account:Account": ("pulumi_gcp.serviceaccount", "Account", "AccountArgs"),
}


def _names(found: Any) -> dict[str, str]:
    """Return the names of the imported class's Python properties, by their names in the protocol."""
    getters = {name: item.fget for name, item in vars(found).items() if isinstance(item, property)}
    return {getattr(get, "_pulumi_name", name): name for name, get in getters.items()}


@pytest.mark.engine
@pytest.mark.parametrize("token", CLASSES)
def test_names_are_those_of_the_imported_classes(token: str) -> None:
    module, resource, arguments = CLASSES[token]
    imported = importlib.import_module(module)
    described = CLOUDS[token.partition(":")[0]].sdk.describe(token)
    inputs = _names(getattr(imported, arguments))
    assert {name: found.python for name, found in described.inputs.items()} == inputs
    outputs = _names(getattr(imported, resource))
    assert {name: found.python for name, found in described.outputs.items()} == outputs
    required = {found.python for found in described.inputs.values() if found.required}
    parameters = getattr(imported, arguments).__init__.__kwdefaults__ or {}
    assert required == set(inputs.values()) - set(parameters)


def test_nested_classes_and_enums_are_found() -> None:
    sdk = CLOUDS["azure-native"].sdk
    interface = sdk.describe("azure-native:network:NetworkInterface")
    configurations = interface.inputs["ipConfigurations"].kind
    assert configurations == ListOf(Named("NetworkInterfaceIPConfigurationArgs"))
    assert isinstance(configurations, ListOf)
    assert isinstance(configurations.item, Named)
    shape = sdk.input_shape(interface.folder, configurations.item)
    assert shape
    assert shape["privateIPAddress"].python == "private_ip_address"
    assert sdk.enum(interface.folder, Named("SecurityRuleAccess")) == ("Allow", "Deny")
    assert sdk.enum(interface.folder, Named("NetworkInterfaceIPConfigurationArgs")) is None


def test_possible_values_in_the_documentation_are_choices() -> None:
    firewall = CLOUDS["gcp"].sdk.describe("gcp:compute/firewall:Firewall")
    assert firewall.inputs["direction"].choices == ("INGRESS", "EGRESS")
    assert firewall.inputs["network"].choices == ()


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnknownToken):
        CLOUDS["gcp"].sdk.describe("gcp:compute/instanc:Instanc")


SCHEMA: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("gcp_schema.yaml").read_text())
RULES, SDK = CLOUDS["gcp"].rules, CLOUDS["gcp"].sdk
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
    """Convert a path from the provider's schema to the SDK's path, for example network_interface.vlan to
    networkInterfaces.vlan."""
    described = SDK.describe(token)
    shape, names = described.inputs, list[str]()
    for part in map(camel, path.split(".")):
        found = [name for name in (part, f"{part}s", f"{part}es", f"{part[:-1]}ies") if name in shape]
        assert found, f"{token} has no {path}"
        names.append(found[0])
        kind = element(shape[found[0]].kind)
        shape = (SDK.input_shape(described.folder, kind) if isinstance(kind, Named) else None) or {}
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
    assert RULES.of(token).replace == expected | BEYOND.get(token, {}).keys()


def test_all_types_with_rules_are_compared() -> None:
    rules = yaml.safe_load((ROOT / "offline/cloud/rules/gcp.yaml").read_text())
    assert set(rules["types"]) == {row["token"] for row in SCHEMA.values()}
    assert rules["replace"] == []


@pytest.mark.parametrize("package", CLOUDS)
def test_every_type_with_rules_is_created_by_the_platform(package: str) -> None:
    files = (ROOT / "components" / "platforms" / package.removesuffix("-native")).rglob("*.py")
    code = "\n".join(file.read_text() for file in files)
    rules = yaml.safe_load((ROOT / "offline" / "cloud" / "rules" / f"{package}.yaml").read_text())
    unused = [token for token in rules["types"] if f"{token.rpartition(':')[2]}(" not in code]
    assert unused == []
