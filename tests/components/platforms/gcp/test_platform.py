"""Resources that GcpPlatform declares."""

from __future__ import annotations

import shlex
from typing import Any, get_args

import pytest

from components.platforms.gcp.spec import FilestoreTier
from offline.cloud.outputs import host_key
from tests.components.platforms.gcp.conftest import Build, Built

INSTANCE = "compute/instance:Instance"
NETWORK = "compute/network:Network"
SUBNET = "compute/subnetwork:Subnetwork"
FIREWALL = "compute/firewall:Firewall"


def nics(built: Built, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = built.one(INSTANCE, name)["networkInterfaces"]
    return found


def test_one_machine_for_each_host_under_its_own_name(build: Build) -> None:
    built = build("gcp-a2")
    assert {inputs["name"] for inputs in built.all(INSTANCE).values()} == {host.name for host in built.plan.hosts}
    assert [host["name"] for host in built.hosts] == [host.name for host in built.plan.hosts]


@pytest.mark.parametrize(
    ("machine", "networks", "mtu", "cards"),
    [
        ("a2-highgpu-8g", 1, 8896, ["GVNIC"]),
        ("a3-highgpu-8g", 5, 8244, ["GVNIC"] * 5),
        ("a3-megagpu-8g", 9, 8244, ["GVNIC"] * 9),
        ("a3-ultragpu-8g", 3, 8896, ["GVNIC"] * 2 + ["MRDMA"] * 8),
        ("a4-highgpu-8g", 3, 8896, ["GVNIC"] * 2 + ["MRDMA"] * 8),
    ],
)
def test_networks_and_cards_of_each_family(
    build: Build, machine: str, networks: int, mtu: int, cards: list[str]
) -> None:
    zone = "us-central1-b"
    image = "projects/my-project-123456/global/images/own"
    built = build("gcp-a2", nodes__gpu__machine=machine, platform__zone=zone, platform__custom_image=image)
    made = built.all(NETWORK)
    assert len(made) == networks
    assert {net["mtu"] for net in made.values()} == {mtu}
    profiles = [net["networkProfile"] for net in made.values() if "networkProfile" in net]
    assert profiles == (
        [f"projects/my-project-123456/global/networkProfiles/{zone}-vpc-roce"] if "MRDMA" in cards else []
    )
    assert [nic["nicType"] for nic in nics(built, "neox-gpu-0")] == cards
    assert len(nics(built, "neox-head")) == 1


def test_every_card_has_a_unique_address_in_its_subnet(build: Build) -> None:
    built = build("gcp-a3-mega", nodes__gpu__count=3)
    ranges = {f"link:{name}": subnet["ipCidrRange"] for name, subnet in built.all(SUBNET).items()}
    seen = [(nic["subnetwork"], nic["networkIp"]) for name in built.all(INSTANCE) for nic in nics(built, name)]
    assert len(set(seen)) == len(seen) == 1 + 3 * 9
    for subnet, address in seen:
        assert address.split(".")[:2] == ranges[subnet].split(".")[:2]
    assert [nic["networkIp"] for nic in nics(built, "mega-gpu-1")][:3] == ["10.77.2.2", "10.192.2.2", "10.192.18.2"]


def test_ssh_is_allowed_to_the_head_from_the_stacks_networks(build: Build) -> None:
    built = build("gcp-a2")
    rules = built.all(FIREWALL)
    del rules["neox-shared-callbacks"]
    [ssh] = [rule for rule in rules.values() if rule["allows"][0]["protocol"] == "tcp"]
    assert ssh["sourceRanges"] == ["203.0.113.0/24"]
    assert ssh["allows"] == [{"protocol": "tcp", "ports": ["22"]}]
    assert ssh["targetTags"] == built.one(INSTANCE, "neox-head")["tags"]
    assert "tags" not in built.one(INSTANCE, "neox-gpu-0")
    inside = [rule["sourceRanges"] for rule in rules.values() if rule is not ssh]
    assert inside == [["10.77.0.0/20"]]


def test_only_a_public_head_has_a_public_address(build: Build) -> None:
    public = build("gcp-a2")
    assert [bool(nics(public, host.name)[0].get("accessConfigs")) for host in public.plan.hosts] == [True, False, False]
    assert public.hosts[0]["address"] == "192.0.2.7"
    private = build("gcp-a2", access__via="private")
    assert not private.all("compute/address:Address")
    assert not any(nics(private, host.name)[0].get("accessConfigs") for host in private.plan.hosts)
    assert private.hosts[0]["address"] == "10.77.0.4"


def test_with_a_bastion_ssh_is_allowed_from_iap_only(build: Build) -> None:
    built = build("gcp-a3-mega")
    sources = {tuple(rule["sourceRanges"]) for rule in built.all(FIREWALL).values()}
    assert ("35.235.240.0/20",) in sources
    assert not built.all("compute/address:Address")
    assert (built.hosts[0]["address"], built.hosts[0]["port"]) == ("127.0.0.1", 22200)
    # The parser of Google Cloud SDK 528.0.0 accepts these options.
    assert shlex.join(built.hosts[0]["tunnel"]) == (
        "gcloud compute start-iap-tunnel mega-head 22 '--local-host-port=127.0.0.1:{port}' --zone=us-central1-a "
        "--project=my-project-123456"
    )
    assert {host["tunnel"] for host in built.hosts[1:]} == {None}


def test_every_network_allows_traffic_between_its_hosts(build: Build) -> None:
    built = build("gcp-a3-mega")
    open_inside = {rule["network"] for rule in built.all(FIREWALL).values() if rule["allows"][0]["protocol"] == "all"}
    assert open_inside == {f"link:{name}" for name in built.all(NETWORK)}


def test_cloud_nat_is_on_the_primary_network_only(build: Build) -> None:
    built = build("gcp-a3-mega")
    [router] = built.all("compute/router:Router").values()
    assert router["network"] == "link:mega-net"
    [nat] = built.all("compute/routerNat:RouterNat").values()
    assert nat["natIpAllocateOption"] == "AUTO_ONLY"


def test_only_machines_without_gpus_migrate(build: Build) -> None:
    built = build("gcp-a2")
    assert built.one(INSTANCE, "neox-gpu-0")["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert built.one(INSTANCE, "neox-head")["scheduling"]["onHostMaintenance"] == "MIGRATE"


def test_metadata_disables_other_keys_and_publishes_host_key(build: Build) -> None:
    built = build("gcp-a2")
    for inputs in built.all(INSTANCE).values():
        metadata = dict(inputs["metadata"])
        assert metadata.pop("user-data").startswith("Content-Type: multipart/mixed")
        assert metadata == {
            "enable-guest-attributes": "TRUE",
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
        }


def test_host_keys_come_from_guest_attributes(build: Build) -> None:
    built = build("gcp-a2")
    assert [host["host_key"] for host in built.hosts] == [host_key(host["name"]) for host in built.hosts]
    assert {asked["variableKey"] for asked in built.asked} == {"hostkeys/ssh-ed25519"}
    assert {(asked["zone"], asked["project"]) for asked in built.asked} == {("us-central1-f", "my-project-123456")}


def test_machines_use_a_service_account_without_roles(build: Build) -> None:
    built = build("gcp-a2")
    emails = {inputs["serviceAccount"]["email"] for inputs in built.all(INSTANCE).values()}
    assert emails == {"neox-nodes@mail"}
    assert not [typ for typ, _, _ in built.resources if "iam" in typ.lower()]


def test_each_machine_boots_the_pinned_image_from_a_valid_disk(build: Build) -> None:
    built = build("gcp-a2", nodes__gpu__machine="a4-highgpu-8g", platform__zone="us-central1-b")
    disk = {name: made["bootDisk"]["initializeParams"] for name, made in built.all(INSTANCE).items()}
    assert disk["neox-gpu-0"]["type"] == "hyperdisk-balanced"
    assert disk["neox-head"]["type"] == "pd-balanced"
    assert {params["image"] for params in disk.values()} == {
        "projects/ubuntu-os-accelerator-images/global/images/ubuntu-accelerator-2404-amd64-with-nvidia-580-v20260522"
    }


def test_tier_1_is_set_if_the_machine_and_stack_support_it(build: Build) -> None:
    tier = {"totalEgressBandwidthTier": "TIER_1"}
    built = build("gcp-a3-mega")
    assert built.one(INSTANCE, "mega-head")["networkPerformanceConfig"] == tier
    assert "networkPerformanceConfig" not in built.one(INSTANCE, "mega-gpu-0")
    assert "networkPerformanceConfig" not in build("gcp-a2").one(INSTANCE, "neox-head")
    off = build("gcp-a3-mega", platform__tier_1=False)
    assert "networkPerformanceConfig" not in off.one(INSTANCE, "mega-head")


def test_a_compact_group_has_its_own_policy(build: Build) -> None:
    built = build("gcp-a2", nodes__gpu__placement="compact")
    policy = built.one("compute/resourcePolicy:ResourcePolicy", "neox-gpu-compact")
    assert policy["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
    gpu = built.one(INSTANCE, "neox-gpu-0")
    assert gpu["resourcePolicies"] == "link:neox-gpu-compact"
    assert gpu["scheduling"]["automaticRestart"] is False
    assert "resourcePolicies" not in built.one(INSTANCE, "neox-head")


@pytest.mark.parametrize("machine", ["a2-highgpu-8g", "a4-highgpu-8g"])
def test_machines_of_a_group_name_its_reservation(build: Build, machine: str) -> None:
    capacity = {"kind": "reservation", "reservation": "mine"}
    nodes = {"machine": machine, "count": 2, "capacity": capacity}
    built = build("gcp-a2", nodes__gpu=nodes, platform__zone="us-central1-b")
    affinity = built.one(INSTANCE, "neox-gpu-0")["reservationAffinity"]
    assert affinity == {
        "type": "SPECIFIC_RESERVATION",
        "specificReservation": {"key": "compute.googleapis.com/reservation-name", "values": ["mine"]},
    }
    assert "reservationAffinity" not in built.one(INSTANCE, "neox-head")


def test_filestore_is_in_the_nodes_zone_and_mounted(build: Build) -> None:
    built = build("gcp-a2")
    [made] = built.all("filestore/instance:Instance").values()
    assert made["location"] == built.one(INSTANCE, "neox-gpu-0")["zone"]
    assert made["fileShares"]["capacityGb"] == 10240
    assert made["deletionProtectionEnabled"] is True
    for host in built.plan.hosts:
        assert "TRAINYARD_SHARED_SOURCE=10.9.8.2:/shared\n" in built.storage(host.name)
        assert "TRAINYARD_SHARED_NFS=3\n" in built.storage(host.name)


@pytest.mark.parametrize("tier", get_args(FilestoreTier))
def test_every_filestore_tier_is_mounted_with_its_protocol(build: Build, tier: str) -> None:
    built = build("gcp-a2", platform__filestore={"tier": tier})
    [made] = built.all("filestore/instance:Instance").values()
    assert made["protocol"] == "NFS_V3"
    assert "TRAINYARD_SHARED_NFS=3\n" in built.storage("neox-head")


def test_filestore_gets_the_name_of_the_network(build: Build) -> None:
    [made] = build("gcp-a2").all("filestore/instance:Instance").values()
    assert [network["network"] for network in made["networks"]] == ["neox-net"]


def test_firewall_allows_filestore_callbacks_without_ssh(build: Build) -> None:
    rule = build("gcp-a2").one(FIREWALL, "neox-shared-callbacks")
    assert (rule["sourceRanges"], rule["network"]) == (["10.9.8.2/32"], "neox-net")
    assert {allowed["protocol"] for allowed in rule["allows"]} == {"tcp", "udp"}
    assert all(allowed["ports"] == ["111", "1024-65535"] for allowed in rule["allows"])
    assert "mega-shared-callbacks" not in build("gcp-a3-mega").all(FIREWALL)


def test_root_of_workers_is_nobody_on_filestore(build: Build) -> None:
    [made] = build("gcp-a2").all("filestore/instance:Instance").values()
    head, workers = made["fileShares"]["nfsExportOptions"]
    assert (head["ipRanges"], head["squashMode"]) == (["10.77.0.4/32"], "NO_ROOT_SQUASH")
    assert workers["squashMode"] == "ROOT_SQUASH"
    assert workers["ipRanges"] == [f"10.77.{block}.0/23" for block in range(2, 16, 2)]


def test_a_regional_filestore_is_in_the_region(build: Build) -> None:
    [made] = build("gcp-a2", platform__filestore={"tier": "REGIONAL"}).all("filestore/instance:Instance").values()
    assert made["location"] == "us-central1"


def test_a_basic_filestore_has_no_deletion_protection(build: Build) -> None:
    [made] = build("gcp-a2", platform__filestore={"tier": "BASIC_SSD"}).all("filestore/instance:Instance").values()
    assert "deletionProtectionEnabled" not in made


def test_head_stores_shared_files_on_a_separate_disk(build: Build) -> None:
    built = build("gcp-a3-mega")
    [disk] = built.all("compute/disk:Disk").values()
    assert disk["size"] == 4096
    head = built.one(INSTANCE, "mega-head")
    assert head["attachedDisks"] == [{"source": "link:mega-shared", "deviceName": "trainyard-shared"}]
    assert "TRAINYARD_SHARED_DISK=/dev/disk/by-id/google-trainyard-shared\n" in built.storage("mega-head")
    worker = built.one(INSTANCE, "mega-gpu-0")
    assert "attachedDisks" not in worker
    assert "TRAINYARD_SHARED_DISK=\n" in built.storage("mega-gpu-0")


def test_external_storage_declares_no_storage_resource(build: Build) -> None:
    built = build("gcp-a2", storage__shared={"kind": "external", "address": "10.1.2.3", "path": "/vol"})
    assert not built.all("filestore/instance:Instance")
    assert not built.all("compute/disk:Disk")
    assert "TRAINYARD_SHARED_SOURCE=10.1.2.3:/vol\n" in built.storage("neox-gpu-0")


def test_user_data_is_below_half_of_the_gcp_limit(build: Build) -> None:
    sizes = [len(made["metadata"]["user-data"].encode()) for made in build("gcp-a3-mega").all(INSTANCE).values()]
    assert max(sizes) < 256 * 1024 // 2
