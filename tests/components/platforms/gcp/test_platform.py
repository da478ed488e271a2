"""Resources that GcpPlatform declares: networks, machines and storage."""

from __future__ import annotations

import shlex
from ipaddress import IPv4Network
from typing import Any, get_args

import pytest

from components.platforms.gcp.layout import cards, networks
from components.platforms.gcp.nodes import scheduling
from components.platforms.gcp.spec import FilestoreTier, families
from components.stackfile.read import parse_stack
from offline.cloud.outputs import host_key
from tests.components.platforms.recording import Build, Built, stack_text

INSTANCE = "compute/instance:Instance"
NETWORK = "compute/network:Network"
SUBNET = "compute/subnetwork:Subnetwork"
FIREWALL = "compute/firewall:Firewall"
FILESTORE = "filestore/instance:Instance"
OWN = "projects/my-project-123456/global/images/own"


def nics(built: Built, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = built.one(INSTANCE, name)["networkInterfaces"]
    return found


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
    built = build("gcp-a2", nodes__gpu__machine=machine, platform__zone=zone, platform__custom_image=OWN)
    made = built.all(NETWORK)
    assert (len(made), {net["mtu"] for net in made.values()}) == (networks, {mtu})
    profile = f"projects/my-project-123456/global/networkProfiles/{zone}-vpc-roce"
    profiles = [net["networkProfile"] for net in made.values() if "networkProfile" in net]
    assert profiles == ([profile] if "MRDMA" in cards else [])
    assert [nic["nicType"] for nic in nics(built, "neox-gpu-0")] == cards
    assert len(nics(built, "neox-head")) == 1


def test_every_card_has_a_unique_address_in_its_subnet(build: Build) -> None:
    built = build("gcp-a3-mega", nodes__gpu__count=3)
    # Pulumi registers the resources in any order.
    names = [inputs["name"] for inputs in built.all(INSTANCE).values()]
    assert sorted(names) == sorted(host.name for host in built.plan.hosts)
    ranges = {f"link:{name}": subnet["ipCidrRange"] for name, subnet in built.all(SUBNET).items()}
    seen = [(nic["subnetwork"], nic["networkIp"]) for name in built.all(INSTANCE) for nic in nics(built, name)]
    assert len(set(seen)) == len(seen) == 1 + 3 * 9
    for subnet, address in seen:
        assert address.split(".")[:2] == ranges[subnet].split(".")[:2]
    assert [nic["networkIp"] for nic in nics(built, "mega-gpu-1")][:3] == ["10.77.2.2", "10.192.2.2", "10.192.18.2"]


def test_mixed_families_have_separate_subnets_and_a_common_mtu() -> None:
    new = {"machine": "a4-highgpu-8g", "count": 3}
    old = {"machine": "a2-highgpu-8g", "count": 3}
    text = stack_text("gcp-a3-mega", platform__zone="us-central1-b", nodes__old=old, nodes__new=new)
    mixed = networks(parse_stack(text, "test").plan)
    ranges = [subnet.cidr for net in mixed for subnet in net.subnets]
    assert len(ranges) == 9 + 8
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]
    assert all(subnet.subnet_of(IPv4Network("10.192.0.0/10")) for subnet in ranges[1:])
    assert [net.mtu for net in mixed] == [8244] * 9 + [8896]


def test_a_larger_group_does_not_move_other_hosts() -> None:
    small, large = (parse_stack(stack_text("gcp-a3-mega", nodes__gpu__count=count), "t").plan for count in (2, 500))
    for host in small.hosts:
        assert cards(networks(small), host) == cards(networks(large), host)


def test_ssh_is_allowed_to_the_head_from_the_stacks_networks(build: Build) -> None:
    built = build("gcp-a2")
    rules = built.all(FIREWALL)
    del rules["neox-shared-callbacks"]
    [ssh] = [rule for rule in rules.values() if rule["allows"][0]["protocol"] == "tcp"]
    assert (ssh["sourceRanges"], ssh["allows"]) == (["203.0.113.0/24"], [{"protocol": "tcp", "ports": ["22"]}])
    assert ssh["targetTags"] == built.one(INSTANCE, "neox-head")["tags"]
    assert "tags" not in built.one(INSTANCE, "neox-gpu-0")
    assert [rule["sourceRanges"] for rule in rules.values() if rule is not ssh] == [["10.77.0.0/20"]]


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
    rules = built.all(FIREWALL).values()
    assert [rule["sourceRanges"] for rule in rules if rule["allows"][0]["protocol"] == "tcp"] == [["35.235.240.0/20"]]
    assert not built.all("compute/address:Address")
    assert (built.hosts[0]["address"], built.hosts[0]["port"]) == ("127.0.0.1", 22200)
    # The parser of Google Cloud SDK 528.0.0 accepts these options.
    assert shlex.join(built.hosts[0]["tunnel"]) == (
        "gcloud compute start-iap-tunnel mega-head 22 '--local-host-port=127.0.0.1:{port}' --zone=us-central1-a "
        "--project=my-project-123456"
    )
    assert {host["tunnel"] for host in built.hosts[1:]} == {None}
    # Every network allows traffic between its hosts, and the primary one has Cloud NAT.
    open_inside = {rule["network"] for rule in rules if rule["allows"][0]["protocol"] == "all"}
    assert open_inside == {f"link:{name}" for name in built.all(NETWORK)}
    assert built.only("compute/router:Router")["network"] == "link:mega-net"
    assert built.only("compute/routerNat:RouterNat")["natIpAllocateOption"] == "AUTO_ONLY"


@pytest.mark.parametrize(
    ("family", "gpus", "kind", "compact", "expected"),
    [
        ("a2-highgpu", 8, "on_demand", False, ("STANDARD", "TERMINATE", True, None)),
        ("n2-standard", 0, "on_demand", False, ("STANDARD", "MIGRATE", True, None)),
        # A restart could place the machine outside the group.
        ("n2-standard", 0, "on_demand", True, ("STANDARD", "TERMINATE", False, None)),
        # An evicted machine is stopped, so that it can be started again.
        ("a2-highgpu", 8, "spot", False, ("SPOT", "TERMINATE", False, "STOP")),
        ("a2-highgpu", 8, "reservation", False, ("STANDARD", "TERMINATE", True, None)),
        # The machines of a dense reservation are bound to it.
        ("a4-highgpu", 8, "reservation", False, ("RESERVATION_BOUND", "TERMINATE", True, "DELETE")),
    ],
)
def test_scheduling_depends_on_family_and_capacity(
    family: str, gpus: int, kind: str, compact: bool, expected: tuple[str, str, bool, str | None]
) -> None:
    made = scheduling(families()[family], gpus, kind, compact=compact)
    action = made.instance_termination_action
    assert (made.provisioning_model, made.on_host_maintenance, made.automatic_restart, action) == expected
    assert made.preemptible is (kind == "spot")


def test_machines_accept_only_the_keys_in_user_data(build: Build) -> None:
    built = build("gcp-a2")
    flags = {"enable-guest-attributes": "TRUE", "enable-oslogin": "FALSE", "block-project-ssh-keys": "TRUE"}
    for inputs in built.all(INSTANCE).values():
        assert {key: value for key, value in inputs["metadata"].items() if key != "user-data"} == flags
        # The service account has no roles.
        assert inputs["serviceAccount"]["email"] == "neox-nodes@mail"
    assert not [typ for typ, _, _ in built.resources if "iam" in typ.lower()]


def test_host_keys_come_from_guest_attributes(build: Build) -> None:
    built = build("gcp-a2")
    assert [host["host_key"] for host in built.hosts] == [host_key(host["name"]) for host in built.hosts]
    assert {(asked["variableKey"], asked["zone"], asked["project"]) for asked in built.asked} == {
        ("hostkeys/ssh-ed25519", "us-central1-f", "my-project-123456")
    }


def test_each_machine_boots_the_pinned_image_from_a_valid_disk(build: Build) -> None:
    built = build("gcp-a2", nodes__gpu__machine="a4-highgpu-8g", platform__zone="us-central1-b")
    disk = {name: made["bootDisk"]["initializeParams"] for name, made in built.all(INSTANCE).items()}
    assert (disk["neox-gpu-0"]["type"], disk["neox-head"]["type"]) == ("hyperdisk-balanced", "pd-balanced")
    assert {params["image"] for params in disk.values()} == {
        "projects/ubuntu-os-accelerator-images/global/images/ubuntu-accelerator-2404-amd64-with-nvidia-580-v20260522"
    }


def test_tier_1_is_set_if_the_machine_and_stack_support_it(build: Build) -> None:
    def tier(built: Built, name: str) -> Any:
        return built.one(INSTANCE, name).get("networkPerformanceConfig")

    built = build("gcp-a3-mega")
    assert tier(built, "mega-head") == {"totalEgressBandwidthTier": "TIER_1"}
    assert tier(built, "mega-gpu-0") is None
    assert tier(build("gcp-a2"), "neox-head") is None
    assert tier(build("gcp-a3-mega", platform__tier_1=False), "mega-head") is None


def test_a_compact_group_has_its_own_policy(build: Build) -> None:
    built = build("gcp-a2", nodes__gpu__placement="compact")
    policy = built.one("compute/resourcePolicy:ResourcePolicy", "neox-gpu-compact")
    assert policy["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}
    gpu = built.one(INSTANCE, "neox-gpu-0")
    assert (gpu["resourcePolicies"], gpu["scheduling"]["automaticRestart"]) == ("link:neox-gpu-compact", False)
    assert "resourcePolicies" not in built.one(INSTANCE, "neox-head")


def test_machines_of_a_group_name_its_reservation(build: Build) -> None:
    built = build("gcp-a2", nodes__gpu__capacity={"kind": "reservation", "reservation": "mine"})
    affinity = built.one(INSTANCE, "neox-gpu-0")["reservationAffinity"]
    assert (affinity["type"], affinity["specificReservation"]["values"]) == ("SPECIFIC_RESERVATION", ["mine"])
    assert "reservationAffinity" not in built.one(INSTANCE, "neox-head")


@pytest.mark.parametrize("tier", get_args(FilestoreTier))
def test_each_filestore_tier_is_mounted_and_protected(build: Build, tier: str) -> None:
    built = build("gcp-a2", platform__filestore={"tier": tier})
    made = built.only(FILESTORE)
    zone = built.one(INSTANCE, "neox-gpu-0")["zone"]
    assert made["location"] == ("us-central1" if tier in {"REGIONAL", "ENTERPRISE"} else zone)
    assert (made["protocol"], made["fileShares"]["capacityGb"]) == ("NFS_V3", 10240)
    assert made.get("deletionProtectionEnabled") == (None if tier.startswith("BASIC") else True)
    assert [network["network"] for network in made["networks"]] == ["neox-net"]
    for host in built.plan.hosts:
        assert "TRAINYARD_SHARED_SOURCE=10.9.8.2:/shared\n" in built.storage(host.name)
        assert "TRAINYARD_SHARED_NFS=3\n" in built.storage(host.name)


def test_a_filestore_calls_back_and_gives_root_only_to_the_head(build: Build) -> None:
    built = build("gcp-a2")
    rule = built.one(FIREWALL, "neox-shared-callbacks")
    assert (rule["sourceRanges"], rule["network"]) == (["10.9.8.2/32"], "neox-net")
    assert {allowed["protocol"] for allowed in rule["allows"]} == {"tcp", "udp"}
    assert all(allowed["ports"] == ["111", "1024-65535"] for allowed in rule["allows"])
    assert "mega-shared-callbacks" not in build("gcp-a3-mega").all(FIREWALL)
    head, workers = built.only(FILESTORE)["fileShares"]["nfsExportOptions"]
    assert (head["ipRanges"], head["squashMode"]) == (["10.77.0.4/32"], "NO_ROOT_SQUASH")
    assert (workers["squashMode"], workers["anonUid"], workers["anonGid"]) == ("ROOT_SQUASH", 65534, 65534)
    assert workers["ipRanges"] == [f"10.77.{block}.0/23" for block in range(2, 16, 2)]


def test_head_stores_shared_files_on_a_separate_disk(build: Build) -> None:
    built = build("gcp-a3-mega")
    assert built.only("compute/disk:Disk")["size"] == 4096
    attached = [{"source": "link:mega-shared", "deviceName": "trainyard-shared"}]
    assert [built.one(INSTANCE, name).get("attachedDisks") for name in ("mega-head", "mega-gpu-0")] == [attached, None]
    assert "TRAINYARD_SHARED_DISK=/dev/disk/by-id/google-trainyard-shared\n" in built.storage("mega-head")
    assert "TRAINYARD_SHARED_DISK=\n" in built.storage("mega-gpu-0")
