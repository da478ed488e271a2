"""Resources that AzurePlatform declares."""

from __future__ import annotations

import base64
import shlex
from typing import Any

import pytest

from offline.cloud.outputs import host_key
from tests.components.platforms.azure.conftest import Build, Built

VM = "compute:VirtualMachine"
NIC = "network:NetworkInterface"
SUBNET = "network:Subnet"
ADDRESS = "network:PublicIPAddress"


def user_data(built: Built, name: str) -> str:
    return base64.b64decode(built.one(VM, name)["osProfile"]["customData"]).decode()


def rules(built: Built) -> dict[str, dict[str, Any]]:
    [group] = built.all("network:NetworkSecurityGroup").values()
    return {rule["name"]: rule for rule in group["securityRules"]}


def test_one_machine_for_each_host_under_its_own_name(build: Build) -> None:
    built = build("azure-a100")
    made = built.all(VM)
    assert set(made) == {host.name for host in built.plan.hosts}
    assert {name: inputs["osProfile"]["computerName"] for name, inputs in made.items()} == {name: name for name in made}
    assert [host["name"] for host in built.hosts] == [host.name for host in built.plan.hosts]


def test_every_card_has_its_hosts_fixed_address(build: Build) -> None:
    built = build("azure-a100", nodes__gpu__count=3, limits={})
    for host in built.plan.hosts:
        [card] = built.one(NIC, f"{host.name}-nic")["ipConfigurations"]
        assert card["privateIPAllocationMethod"] == "Static"
        assert card["privateIPAddress"] == str(host.private_ip)
        assert card["subnet"]["id"] == "id-opt-net-nodes"
        assert built.one(NIC, f"{host.name}-nic")["enableAcceleratedNetworking"] is True


def test_ssh_is_allowed_to_the_head_from_the_stacks_networks(build: Build) -> None:
    found = rules(build("azure-a100"))
    ssh = found["ssh"]
    assert ssh["sourceAddressPrefixes"] == ["203.0.113.0/24"]
    assert (ssh["destinationAddressPrefix"], ssh["destinationPortRange"]) == ("10.77.0.4/32", "22")
    assert found["inside"]["sourceAddressPrefix"] == found["inside"]["destinationAddressPrefix"] == "10.77.0.0/20"
    assert (found["nobody-else"]["access"], found["nobody-else"]["sourceAddressPrefix"]) == ("Deny", "*")
    assert ssh["priority"] < found["inside"]["priority"] < found["nobody-else"]["priority"]


def test_nodes_use_the_nat_gateway_only(build: Build) -> None:
    built = build("azure-a100")
    [subnet] = built.all(SUBNET).values()
    assert subnet["natGateway"] == {"id": "id-opt-net-nat"}
    assert subnet["networkSecurityGroup"] == {"id": "id-opt-net-rules"}
    assert subnet["defaultOutboundAccess"] is False
    assert built.one("network:NatGateway", "opt-net-nat")["publicIpAddresses"] == [{"id": "id-opt-net-nat-address"}]


def test_only_a_public_head_has_a_public_address(build: Build) -> None:
    public = build("azure-a100")
    cards = {name: nic["ipConfigurations"][0].get("publicIPAddress") for name, nic in public.all(NIC).items()}
    assert cards == {"opt-head-nic": {"id": "id-opt-head-address"}, "opt-gpu-0-nic": None, "opt-gpu-1-nic": None}
    assert public.hosts[0]["address"] == "192.0.2.7"
    assert public.hosts[0]["tunnel"] is None
    private = build("azure-a100", access__via="private")
    assert list(private.all(ADDRESS)) == ["opt-net-nat-address"]
    assert private.hosts[0]["address"] == "10.77.0.4"
    assert rules(private)["ssh"]["sourceAddressPrefixes"] == ["203.0.113.0/24"]


def test_idle_timeout_of_the_heads_address_is_30_minutes(build: Build) -> None:
    # Azure's default is 4 minutes.
    assert build("azure-a100").one(ADDRESS, "opt-head-address")["idleTimeoutInMinutes"] == 30


def test_with_a_bastion_ssh_is_allowed_from_its_subnet_only(build: Build) -> None:
    built = build("azure-h100")
    assert rules(built)["ssh"]["sourceAddressPrefixes"] == ["10.78.0.0/26"]
    bastion = built.one(SUBNET, "hopper-net-bastion")
    assert (bastion["subnetName"], bastion["addressPrefix"]) == ("AzureBastionSubnet", "10.78.0.0/26")
    host = built.one("network:BastionHost", "hopper-bastion")
    assert (host["sku"], host["enableTunneling"]) == ({"name": "Standard"}, True)
    assert (built.hosts[0]["address"], built.hosts[0]["port"]) == ("127.0.0.1", 22200)
    # The options are from bastion 1.4 (_params.py). The command uses the Bastion's subscription and resource group.
    assert shlex.join(built.hosts[0]["tunnel"]) == (
        "az network bastion tunnel --subscription s --resource-group hopper-trainyard --name hopper-bastion "
        "--target-resource-id id-hopper-head --resource-port 22 --port '{port}'"
    )
    assert [host["tunnel"] for host in built.hosts[1:]] == [None, None]
    assert "hopper-head-address" not in built.all(ADDRESS)


def test_subnets_are_in_the_network_and_do_not_overlap(build: Build) -> None:
    built = build("azure-h100")
    [network] = built.all("network:VirtualNetwork").values()
    subnets = [subnet["addressPrefix"] for subnet in built.all(SUBNET).values()]
    assert sorted(network["addressSpace"]["addressPrefixes"]) == sorted(subnets)
    assert len(set(subnets)) == 3


def test_delegated_subnet_has_no_outbound_setting(build: Build) -> None:
    subnet = build("azure-h100").one(SUBNET, "hopper-net-netapp")
    assert subnet["delegations"] == [{"name": "netapp", "serviceName": "Microsoft.NetApp/volumes"}]
    assert "defaultOutboundAccess" not in subnet


@pytest.mark.parametrize(("stack", "name"), [("azure-a100", "opt"), ("azure-h100", "hopper")])
def test_machines_of_one_fabric_share_one_availability_set(build: Build, stack: str, name: str) -> None:
    built = build(stack)
    [made] = built.all("compute:AvailabilitySet").values()
    assert made["sku"] == {"name": "Aligned"}
    assert (made["platformFaultDomainCount"], made["platformUpdateDomainCount"]) == (1, 1)
    assert not built.all("compute:VirtualMachineScaleSet")
    workers = [built.one(VM, host.name) for host in built.plan.workers]
    assert [machine["availabilitySet"] for machine in workers] == [{"id": f"id-{name}-gpu"}] * 2
    assert not any("zones" in machine for machine in workers)
    assert "availabilitySet" not in built.one(VM, f"{name}-head")


def test_spot_machines_of_one_fabric_join_a_flexible_scale_set(build: Build) -> None:
    built = build("azure-h100", nodes__gpu__capacity={"kind": "spot"}, platform__zone="1")
    [made] = built.all("compute:VirtualMachineScaleSet").values()
    # A new machine can join a scale set only if both properties have these values.
    assert (made["orchestrationMode"], made["singlePlacementGroup"]) == ("Flexible", False)
    assert made["platformFaultDomainCount"] == 1
    # With a scaling profile, Azure would create additional machines.
    assert "virtualMachineProfile" not in made
    assert "sku" not in made
    machine = built.one(VM, "hopper-gpu-0")
    assert machine["virtualMachineScaleSet"] == {"id": "id-hopper-gpu"}
    assert (machine["priority"], machine["evictionPolicy"]) == ("Spot", "Deallocate")
    assert machine["billingProfile"] == {"maxPrice": -1}
    assert machine["zones"] == made["zones"] == ["1"]
    head = built.one(VM, "hopper-head")
    assert not {"priority", "evictionPolicy", "virtualMachineScaleSet"} & head.keys()


def test_a_compact_group_shares_a_proximity_group(build: Build) -> None:
    built = build("azure-a100", nodes__gpu__machine="Standard_NC96ads_A100_v4", nodes__gpu__placement="compact")
    assert list(built.all("compute:ProximityPlacementGroup")) == ["opt-gpu"]
    assert built.one(VM, "opt-gpu-1")["proximityPlacementGroup"] == {"id": "id-opt-gpu"}


def test_machines_of_a_group_name_its_reservation(build: Build) -> None:
    group = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/capacityReservationGroups/mine"
    capacity = {"kind": "reservation", "reservation": group}
    built = build(
        "azure-a100",
        platform__zone="1",
        nodes__gpu={"machine": "Standard_NC96ads_A100_v4", "count": 1, "capacity": capacity},
    )
    held = built.one(VM, "opt-gpu-0")["capacityReservation"]
    assert held == {"capacityReservationGroup": {"id": group}}
    assert "capacityReservation" not in built.one(VM, "opt-head")


PINNED = {"publisher": "microsoft-dsvm", "offer": "ubuntu-hpc", "sku": "2404", "version": "24.04.2026072901"}
OWN = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/images/own"


@pytest.mark.parametrize(
    ("edits", "image"),
    [
        ({}, PINNED),
        ({"platform__image_version": "24.04.2027010100"}, PINNED | {"version": "24.04.2027010100"}),
        ({"platform__custom_image": OWN}, {"id": OWN}),
    ],
)
def test_each_machine_boots_the_image_of_the_stack(build: Build, edits: dict[str, str], image: dict[str, str]) -> None:
    for machine in build("azure-a100", **edits).all(VM).values():
        assert machine["storageProfile"]["imageReference"] == image


def test_boot_disks_have_no_explicit_name(build: Build) -> None:
    # The disk of a replaced machine can remain after the machine is deleted, so its name can be in use.
    for machine in build("azure-a100").all(VM).values():
        assert "name" not in machine["storageProfile"]["osDisk"]
        assert machine["storageProfile"]["osDisk"]["deleteOption"] == "Delete"


def test_the_azure_user_is_the_admin_in_user_data(build: Build) -> None:
    built = build("azure-a100")
    assert user_data(built, "opt-gpu-1").startswith("Content-Type: multipart/mixed")
    assert "TRAINYARD_NODE=opt-gpu-1\n" in user_data(built, "opt-gpu-1")
    system = built.one(VM, "opt-head")["osProfile"]
    assert system["adminUsername"] == "ops"
    assert system["linuxConfiguration"]["disablePasswordAuthentication"] is True
    [key] = system["linuxConfiguration"]["ssh"]["publicKeys"]
    assert key == {"keyData": "ssh-ed25519 AAAAadmin admin@cluster", "path": "/home/ops/.ssh/authorized_keys"}


def test_host_keys_come_from_azure_run_commands(build: Build) -> None:
    built = build("azure-a100")
    assert [host["host_key"] for host in built.hosts] == [host_key(host["name"]) for host in built.hosts]
    asked = built.all("VirtualMachineRunCommandByVirtualMachine")
    assert {inputs["vmName"] for inputs in asked.values()} == {host.name for host in built.plan.hosts}
    assert not any(inputs["asyncExecution"] for inputs in asked.values())
    # components/cluster reports a machine without a key.
    assert not any(inputs["treatFailureAsDeploymentFailure"] for inputs in asked.values())
    assert "PRIVATE" not in str(asked)


def test_the_head_serves_files_from_a_disk_that_outlives_it(build: Build) -> None:
    built = build("azure-a100")
    assert built.one("compute:Disk", "opt-shared")["diskSizeGB"] == 1024
    [disk] = built.one(VM, "opt-head")["storageProfile"]["dataDisks"]
    assert (disk["managedDisk"], disk["createOption"], disk["deleteOption"]) == (
        {"id": "id-opt-shared"},
        "Attach",
        "Detach",
    )
    assert "TRAINYARD_SHARED_DISK=/dev/disk/azure/scsi1/lun0\n" in built.storage("opt-head")
    assert "dataDisks" not in built.one(VM, "opt-gpu-0")["storageProfile"]


def test_netapp_files_has_whole_tebibytes_and_one_root(build: Build) -> None:
    built = build("azure-h100", storage__shared__size_gib=1500, platform__zone="1")
    assert built.one("netapp:CapacityPool", "hopper-netapp-pool")["size"] == 2 * 2**40
    volume = built.one("netapp:CapacityPoolVolume", "hopper-netapp-shared")
    assert volume["usageThreshold"] == 1500 * 2**30
    assert volume["poolName"] == "pool"
    assert volume["protocolTypes"] == ["NFSv4.1"]
    assert volume["zones"] == ["1"]
    head, others = volume["exportPolicy"]["rules"]
    assert (head["allowedClients"], head["hasRootAccess"]) == ("10.77.0.4", True)
    assert (others["allowedClients"], others["hasRootAccess"]) == ("10.77.0.0/20", False)
    assert all(rule["nfsv41"] and not rule["nfsv3"] for rule in (head, others))
    delegated = built.one(SUBNET, "hopper-net-netapp")
    assert volume["subnetId"] == "id-hopper-net-netapp"
    assert [item["serviceName"] for item in delegated["delegations"]] == ["Microsoft.NetApp/volumes"]
    for host in built.plan.hosts:
        assert "TRAINYARD_SHARED_SOURCE=10.78.0.68:/hopper-shared\n" in built.storage(host.name)
        assert "TRAINYARD_SHARED_DOMAIN=defaultv4iddomain.com\n" in built.storage(host.name)


def test_azure_files_allows_the_nodes_subnet_only(build: Build) -> None:
    built = build("azure-a100", storage__shared={"kind": "azure_files", "size_gib": 1024})
    [account] = built.all("storage:StorageAccount").values()
    assert (account["kind"], account["sku"]["name"]) == ("FileStorage", "Premium_LRS")
    assert account["enableHttpsTrafficOnly"] is False
    assert account["networkRuleSet"]["defaultAction"] == "Deny"
    [allowed] = account["networkRuleSet"]["virtualNetworkRules"]
    assert allowed["virtualNetworkResourceId"] == "id-opt-net-nodes"
    assert [point["service"] for point in built.one(SUBNET, "opt-net-nodes")["serviceEndpoints"]] == [
        "Microsoft.Storage"
    ]
    [share] = built.all("storage:FileShare").values()
    assert (share["enabledProtocols"], share["shareQuota"]) == ("NFS", 1024)
    name = account["accountName"]
    assert name.isalnum()
    assert name == name.lower()
    assert 3 <= len(name) <= 24
    source = f"TRAINYARD_SHARED_SOURCE={name}.file.core.windows.net:/{name}/shared\n"
    assert source in built.storage("opt-gpu-0")


def test_external_storage_declares_no_storage_resource(build: Build) -> None:
    built = build("azure-a100", storage__shared={"kind": "external", "address": "10.0.0.9", "path": "/export"})
    assert not built.all("compute:Disk")
    assert "TRAINYARD_SHARED_SOURCE=10.0.0.9:/export\n" in built.storage("opt-gpu-0")


def test_resources_have_the_cluster_tag_if_supported(build: Build) -> None:
    built = build("azure-h100")
    untagged = {"Subnet", "azure-native"}
    for typ, name, inputs in built.resources:
        if not typ.startswith("trainyard:") and typ.rpartition(":")[2] not in untagged:
            assert inputs.get("tags") == {"trainyard-cluster": "hopper"}, name
