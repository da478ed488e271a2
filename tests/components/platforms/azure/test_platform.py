"""Resources that AzurePlatform declares."""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import Any

import pulumi
import pytest
from pulumi import resource

from components.platforms.azure.platform import without_former_types
from offline.cloud.outputs import host_key
from tests.components.platforms.recording import Build, Built

VM = "compute:VirtualMachine"
NIC = "network:NetworkInterface"
SUBNET = "network:Subnet"
ADDRESS = "network:PublicIPAddress"
DISK = "compute:Disk"


def rules(built: Built) -> dict[str, dict[str, Any]]:
    return {rule["name"]: rule for rule in built.only("network:NetworkSecurityGroup")["securityRules"]}


def test_each_machine_has_its_name_and_a_static_address(build: Build) -> None:
    built = build("azure-a100")
    assert [vm["osProfile"]["computerName"] for vm in built.all(VM).values()] == [*built.all(VM)]
    for nic in built.all(NIC).values():
        [card] = nic["ipConfigurations"]
        assert card["privateIPAllocationMethod"] == "Static"
        assert (card["subnet"]["id"], nic["enableAcceleratedNetworking"]) == ("id-opt-net-nodes", True)


def test_ssh_is_allowed_to_the_head_from_the_stacks_networks(build: Build) -> None:
    found = rules(build("azure-a100"))
    ssh = found["ssh"]
    assert ssh["sourceAddressPrefixes"] == ["203.0.113.0/24"]
    assert (ssh["destinationAddressPrefix"], ssh["destinationPortRange"]) == ("10.77.0.4/32", "22")
    assert found["inside"]["sourceAddressPrefix"] == found["inside"]["destinationAddressPrefix"] == "10.77.0.0/20"
    assert (found["nobody-else"]["access"], found["nobody-else"]["sourceAddressPrefix"]) == ("Deny", "*")
    assert ssh["priority"] < found["inside"]["priority"] < found["nobody-else"]["priority"]
    assert rules(build("azure-a100", access__via="private"))["ssh"]["sourceAddressPrefixes"] == ["203.0.113.0/24"]


def test_nodes_use_the_nat_gateway_only(build: Build) -> None:
    built = build("azure-a100")
    subnet = built.only(SUBNET)
    assert subnet["natGateway"] == {"id": "id-opt-net-nat"}
    assert subnet["networkSecurityGroup"] == {"id": "id-opt-net-rules"}
    assert subnet["defaultOutboundAccess"] is False
    assert built.one("network:NatGateway", "opt-net-nat")["publicIpAddresses"] == [{"id": "id-opt-net-nat-address"}]


def test_only_a_public_head_has_a_public_address(build: Build) -> None:
    public = build("azure-a100")
    cards = {name: nic["ipConfigurations"][0].get("publicIPAddress") for name, nic in public.all(NIC).items()}
    assert cards == {"opt-head-nic": {"id": "id-opt-head-address"}, "opt-gpu-0-nic": None, "opt-gpu-1-nic": None}
    assert (public.hosts[0]["address"], public.hosts[0]["tunnel"]) == ("192.0.2.7", None)
    # Azure's default idle timeout is 4 minutes.
    assert public.one(ADDRESS, "opt-head-address")["idleTimeoutInMinutes"] == 30
    private = build("azure-a100", access__via="private")
    assert list(private.all(ADDRESS)) == ["opt-net-nat-address"]
    assert private.hosts[0]["address"] == "10.77.0.4"


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
    subnets = [subnet["addressPrefix"] for subnet in built.all(SUBNET).values()]
    assert sorted(built.only("network:VirtualNetwork")["addressSpace"]["addressPrefixes"]) == sorted(subnets)
    assert len(set(subnets)) == 3
    delegated = built.one(SUBNET, "hopper-net-netapp")
    assert delegated["delegations"] == [{"name": "netapp", "serviceName": "Microsoft.NetApp/volumes"}]
    assert "defaultOutboundAccess" not in delegated


def test_machines_of_one_fabric_share_one_availability_set(build: Build) -> None:
    built = build("azure-h100")
    made = built.only("compute:AvailabilitySet")
    assert made["sku"] == {"name": "Aligned"}
    assert (made["platformFaultDomainCount"], made["platformUpdateDomainCount"]) == (1, 1)
    workers = [built.one(VM, host.name) for host in built.plan.workers]
    assert [machine["availabilitySet"] for machine in workers] == [{"id": "id-hopper-gpu"}] * 2
    assert not any("zones" in machine for machine in workers)
    assert "availabilitySet" not in built.one(VM, "hopper-head")


def test_spot_machines_of_one_fabric_join_a_flexible_scale_set(build: Build) -> None:
    built = build("azure-h100", nodes__gpu__capacity={"kind": "spot"}, platform__zone="1")
    made = built.only("compute:VirtualMachineScaleSet")
    # A new machine can join a scale set only if both properties have these values.
    assert (made["orchestrationMode"], made["singlePlacementGroup"]) == ("Flexible", False)
    assert made["platformFaultDomainCount"] == 1
    # With a scaling profile, Azure would create additional machines.
    assert not {"virtualMachineProfile", "sku"} & made.keys()
    machine = built.one(VM, "hopper-gpu-0")
    assert machine["virtualMachineScaleSet"] == {"id": "id-hopper-gpu"}
    assert (machine["priority"], machine["evictionPolicy"]) == ("Spot", "Deallocate")
    assert machine["billingProfile"] == {"maxPrice": -1}
    assert machine["zones"] == made["zones"] == ["1"]
    assert not {"priority", "evictionPolicy", "virtualMachineScaleSet"} & built.one(VM, "hopper-head").keys()


def test_compact_and_reserved_groups_name_their_resource(build: Build) -> None:
    compact = build("azure-a100", nodes__gpu__machine="Standard_NC96ads_A100_v4", nodes__gpu__placement="compact")
    assert list(compact.all("compute:ProximityPlacementGroup")) == ["opt-gpu"]
    assert compact.one(VM, "opt-gpu-1")["proximityPlacementGroup"] == {"id": "id-opt-gpu"}
    group = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/capacityReservationGroups/mine"
    capacity = {"kind": "reservation", "reservation": group}
    nodes = {"machine": "Standard_NC96ads_A100_v4", "count": 1, "capacity": capacity}
    reserved = build("azure-a100", platform__zone="1", nodes__gpu=nodes)
    held = {"capacityReservationGroup": {"id": group}}
    assert [reserved.one(VM, name).get("capacityReservation") for name in ("opt-gpu-0", "opt-head")] == [held, None]


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
        storage = machine["storageProfile"]
        assert storage["imageReference"] == image
        # The disk of a replaced machine can remain after the machine is deleted, so its name can be in use.
        assert "name" not in storage["osDisk"]
        assert storage["osDisk"]["deleteOption"] == "Delete"


def test_the_azure_user_is_the_admin(build: Build) -> None:
    system = build("azure-a100").one(VM, "opt-head")["osProfile"]
    assert system["adminUsername"] == "ops"
    assert system["linuxConfiguration"]["disablePasswordAuthentication"] is True
    [key] = system["linuxConfiguration"]["ssh"]["publicKeys"]
    assert key == {"keyData": "ssh-ed25519 AAAAauthority authority@cluster", "path": "/home/ops/.ssh/authorized_keys"}


def test_host_keys_come_from_azure_run_commands(build: Build) -> None:
    built = build("azure-a100")
    assert [host["host_key"] for host in built.hosts] == [host_key(host["name"]) for host in built.hosts]
    asked = built.all("VirtualMachineRunCommandByVirtualMachine")
    assert {inputs["vmName"] for inputs in asked.values()} == {host.name for host in built.plan.hosts}
    # components/cluster reports a machine without a key.
    options = {(inputs["asyncExecution"], inputs["treatFailureAsDeploymentFailure"]) for inputs in asked.values()}
    assert options == {(False, False)}


def test_the_head_serves_files_from_a_disk_that_outlives_it(build: Build) -> None:
    built = build("azure-a100")
    assert built.one(DISK, "opt-shared")["diskSizeGB"] == 1024
    [disk] = built.one(VM, "opt-head")["storageProfile"]["dataDisks"]
    assert disk["managedDisk"] == {"id": "id-opt-shared"}
    assert (disk["createOption"], disk["deleteOption"]) == ("Attach", "Detach")
    assert "TRAINYARD_SHARED_DISK=/dev/disk/azure/scsi1/lun0\n" in built.storage("opt-head")
    assert "dataDisks" not in built.one(VM, "opt-gpu-0")["storageProfile"]


def test_netapp_files_has_whole_tebibytes_and_one_root(build: Build) -> None:
    built = build("azure-h100", storage__shared__size_gib=1500, platform__zone="1")
    assert built.one("netapp:CapacityPool", "hopper-netapp-pool")["size"] == 2 * 2**40
    volume = built.one("netapp:CapacityPoolVolume", "hopper-netapp-shared")
    assert (volume["usageThreshold"], volume["poolName"]) == (1500 * 2**30, "pool")
    assert (volume["protocolTypes"], volume["zones"]) == (["NFSv4.1"], ["1"])
    assert volume["subnetId"] == "id-hopper-net-netapp"
    head, others = volume["exportPolicy"]["rules"]
    assert (head["allowedClients"], head["hasRootAccess"]) == ("10.77.0.4", True)
    assert (others["allowedClients"], others["hasRootAccess"]) == ("10.77.0.0/20", False)
    assert all(rule["nfsv41"] and not rule["nfsv3"] for rule in (head, others))
    for host in built.plan.hosts:
        assert "TRAINYARD_SHARED_SOURCE=10.78.0.68:/hopper-shared\n" in built.storage(host.name)
        assert "TRAINYARD_SHARED_DOMAIN=defaultv4iddomain.com\n" in built.storage(host.name)


def test_azure_files_allows_the_nodes_subnet_only(build: Build) -> None:
    built = build("azure-a100", storage__shared={"kind": "azure_files", "size_gib": 1024})
    account, share = built.only("storage:StorageAccount"), built.only("storage:FileShare")
    assert (account["kind"], account["sku"]["name"]) == ("FileStorage", "Premium_LRS")
    assert account["enableHttpsTrafficOnly"] is False
    assert account["networkRuleSet"]["defaultAction"] == "Deny"
    [allowed] = account["networkRuleSet"]["virtualNetworkRules"]
    assert allowed["virtualNetworkResourceId"] == "id-opt-net-nodes"
    [point] = built.one(SUBNET, "opt-net-nodes")["serviceEndpoints"]
    assert point["service"] == "Microsoft.Storage"
    assert (share["enabledProtocols"], share["shareQuota"]) == ("NFS", 1024)
    name = account["accountName"]
    assert re.fullmatch("[a-z0-9]{3,24}", name)
    source = f"TRAINYARD_SHARED_SOURCE={name}.file.core.windows.net:/{name}/shared\n"
    assert source in built.storage("opt-gpu-0")


def test_resources_have_the_cluster_tag_if_supported(build: Build) -> None:
    for typ, name, inputs in build("azure-h100").resources:
        if not typ.startswith("trainyard:") and typ.rpartition(":")[2] not in {"Subnet", "azure-native"}:
            assert inputs.get("tags") == {"trainyard-cluster": "hopper"}, name


def test_only_former_types_are_removed_from_aliases(loops: asyncio.AbstractEventLoop) -> None:
    own = pulumi.Alias(name="former-name", type_="azure-native:network:Former")
    former = pulumi.Alias(type_="azure-native:network/v20240101:Former")
    options = pulumi.ResourceOptions(aliases=[former, own, "urn:pulumi:s::p::t::n"], protect=True)
    made = object.__new__(pulumi.CustomResource)
    left = without_former_types(pulumi.ResourceTransformationArgs(made, "t", "n", {}, options))
    assert left is not None
    assert (left.opts.aliases, left.opts.protect) == ([own, "urn:pulumi:s::p::t::n"], True)
    assert options.aliases == [former, own, "urn:pulumi:s::p::t::n"], "the options of the caller must not change"


def test_platform_resources_have_no_former_types(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed: list[Any] = []
    monkeypatch.setattr(resource, "collapse_alias_to_urn", lambda alias, name, kind, parent: collapsed.append(alias))
    built = build("azure-a100", platform__boot_disk_gib=257)  # used by no other test, because results are cached
    assert len(built.resources) > 10
    # The remaining aliases contain the parent before the resource moved into a component.
    assert [alias for alias in collapsed if alias.type_ is not ... or alias.parent is ...] == []
