"""Preview, up, refresh and destroy of small stacks with the real SDKs and the real engine."""

from __future__ import annotations

import pytest

from offline.cloud.azure import SUBSCRIPTION
from tests.offline.cloud.stack import TestStack

pytestmark = pytest.mark.engine

AZURE = """
from pulumi_azure_native import compute, network, resources

group = resources.ResourceGroup("group", location="southcentralus")
common = {"resource_group_name": group.name, "location": group.location}
net = network.VirtualNetwork("net", address_space={"address_prefixes": ["10.0.0.0/16"]}, **common)
rules = network.NetworkSecurityGroup("rules", **common)
subnet = network.Subnet("subnet", resource_group_name=group.name, virtual_network_name=net.name,
    address_prefix="10.0.1.0/24", network_security_group={"id": rules.id})
address = network.PublicIPAddress("address", public_ip_allocation_method="Static", sku={"name": "Standard"}, **common)
nic = network.NetworkInterface("nic", ip_configurations=[{
    "name": "main", "subnet": {"id": subnet.id}, "private_ip_allocation_method": "Static",
    "private_ip_address": "10.0.1.4", "public_ip_address": {"id": address.id}}], **common)
vm = compute.VirtualMachine("vm", vm_name="head-0", network_profile={"network_interfaces": [{"id": nic.id}]},
    hardware_profile={"vm_size": "Standard_ND96amsr_A100_v4"},
    os_profile={"computer_name": "head-0", "admin_username": "admin", "custom_data": pulumi.Output.secret("c2VjcmV0")},
    storage_profile={"image_reference": {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2204",
        "version": "22.04.1"}, "os_disk": {"create_option": "FromImage"}}, **common)
key = compute.VirtualMachineRunCommandByVirtualMachine("key", vm_name=vm.name, run_command_name="key",
    source={"script": "cat /etc/ssh/ssh_host_ed25519_key.pub"}, **common)
pulumi.export("vm", vm.id)
pulumi.export("private", nic.ip_configurations[0].private_ip_address)
pulumi.export("public", address.ip_address)
answer = compute.get_virtual_machine_run_command_by_virtual_machine_output(resource_group_name=group.name,
    vm_name=vm.name, run_command_name=key.name, expand="instanceView")
pulumi.export("key", answer.instance_view.output)
pulumi.export("data", vm.os_profile.custom_data)
"""

GCP = """
from pulumi_gcp import compute

net = compute.Network("net", auto_create_subnetworks=False, mtu=8896)
subnet = compute.Subnetwork("subnet", network=net.id, region="us-central1", ip_cidr_range="10.0.1.0/24")
rule = compute.Firewall("rule", network=net.self_link, source_ranges=["10.0.1.0/24"], allows=[{"protocol": "all"}])
address = compute.Address("address", region="us-central1")
vm = compute.Instance("vm", name="head-0", machine_type="a2-highgpu-8g", zone="us-central1-c",
    boot_disk={"initialize_params": {"image": "debian-cloud/debian-12", "size": 100}},
    metadata={"user-data": pulumi.Output.secret("#cloud-config secret")},
    network_interfaces=[{"subnetwork": subnet.id, "network_ip": "10.0.1.4", "nic_type": "GVNIC",
        "access_configs": [{"nat_ip": address.address}]}])
pulumi.export("vm", vm.id)
pulumi.export("link", vm.self_link)
pulumi.export("private", vm.network_interfaces[0].network_ip)
pulumi.export("public", vm.network_interfaces[0].access_configs[0].nat_ip)
pulumi.export("metadata", vm.metadata)
"""


_AZURE_VM = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/group"
_GCP_VM = "projects/offline/zones/us-central1-c/instances/head-0"


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "resources", "secret", "starts"),
    [
        (AZURE, 8, "c2VjcmV0", {"vm": _AZURE_VM, "key": "ssh-ed25519 AAAA", "data": "c2VjcmV0"}),
        (GCP, 5, "#cloud-config", {"vm": _GCP_VM, "link": f"https://www.googleapis.com/compute/v1/{_GCP_VM}"}),
    ],
    ids=["azure", "gcp"],
)
def test_a_stack_is_created_unchanged_and_destroyed(
    stack: TestStack, program: str, resources: int, secret: str, starts: dict[str, str]
) -> None:
    stack.write(program)
    preview = stack.preview()
    assert preview.code == 0, preview
    assert f"+ {resources + 1} to create" in preview.text
    assert "offline: " in preview.text
    assert stack.kinds == []
    up = stack.up()
    assert up.code == 0, up
    assert len(stack.kinds) == resources
    for again in (stack.refresh("--expect-no-changes"), stack.up("--expect-no-changes")):
        assert again.code == 0, again
    found = stack.outputs()
    for name, start in {**starts, "private": "10.0.1.4", "public": "203.0.113."}.items():
        assert found[name].startswith(start)
    assert secret in str(found)
    assert secret not in stack("stack", "output", "-s", "test").text
    # Only the engine's state contains the secret.
    assert not [file for file in stack.world.folder.rglob("*") if file.is_file() and secret in file.read_text()]
    destroy = stack.destroy()
    assert destroy.code == 0, destroy
    assert stack.kinds == []
