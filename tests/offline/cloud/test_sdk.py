"""Compare the descriptions parsed from SDK source code with the imported SDKs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from offline.cloud.sdk import ListOf, Named, Sdk, UnknownToken

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


@pytest.fixture(scope="module")
def sdks() -> dict[str, Sdk]:
    """Both SDKs."""
    return {"azure-native": Sdk("pulumi_azure_native"), "gcp": Sdk("pulumi_gcp")}


def _names(found: Any) -> dict[str, str]:
    """Return the names of the imported class's Python properties, by their names in the protocol."""
    getters = {name: item.fget for name, item in vars(found).items() if isinstance(item, property)}
    return {getattr(get, "_pulumi_name", name): name for name, get in getters.items()}


@pytest.mark.engine
@pytest.mark.parametrize("token", CLASSES)
def test_names_are_those_of_the_imported_classes(token: str, sdks: dict[str, Sdk]) -> None:
    module, resource, arguments = CLASSES[token]
    imported = importlib.import_module(module)
    described = sdks[token.partition(":")[0]].describe(token)
    inputs = _names(getattr(imported, arguments))
    assert {name: found.python for name, found in described.inputs.items()} == inputs
    outputs = _names(getattr(imported, resource))
    assert {name: found.python for name, found in described.outputs.items()} == outputs
    required = {found.python for found in described.inputs.values() if found.required}
    parameters = getattr(imported, arguments).__init__.__kwdefaults__ or {}
    assert required == set(inputs.values()) - set(parameters)


def test_nested_classes_and_enums_are_found(sdks: dict[str, Sdk]) -> None:
    sdk = sdks["azure-native"]
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


def test_possible_values_in_the_documentation_are_choices(sdks: dict[str, Sdk]) -> None:
    firewall = sdks["gcp"].describe("gcp:compute/firewall:Firewall")
    assert firewall.inputs["direction"].choices == ("INGRESS", "EGRESS")
    assert firewall.inputs["network"].choices == ()


def test_an_unknown_type_is_refused(sdks: dict[str, Sdk]) -> None:
    with pytest.raises(UnknownToken):
        sdks["gcp"].describe("gcp:compute/instanc:Instanc")
