"""Each check of a platform accepts a stack and refuses another one. Quotas and published lists of the clouds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.catalog import images, machines
from components.plan.check import Check, Computer, Planned
from components.platforms import PLATFORMS
from components.platforms.azure.layout import PlacementKind, placement_of
from components.platforms.azure.spec import region_facts, sizes
from components.platforms.demand import quota_needs
from components.platforms.gcp.spec import families, zone_facts
from components.platforms.registry import platform_facts
from tests.components.platforms.recording import Edits, current_name, planned
from trainyard.errors import Problem

STACKS = {"azure": "azure-a100", "gcp": "gcp-a2", "hosts": "lambda-a6000", "local": "local"}

MACHINE, COUNT = "nodes__gpu__machine", "nodes__gpu__count"
PLACEMENT, CAPACITY, STORAGE = "nodes__gpu__placement", "nodes__gpu__capacity", "storage__shared"
SPOT = {CAPACITY: {"kind": "spot"}}
BASTION: Edits = {"access": {"via": "bastion"}}
NO_SSH: Edits = {"access": {"via": "public"}}
NARROW_SSH = {"access__allow_ssh_from": ["10.0.0.0/8", "203.0.113.7/32"]}
OPEN_SSH = {"access__allow_ssh_from": ["203.0.113.7/32", "0.0.0.0/1"]}

GROUP = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute"
RESERVED = {"kind": "reservation", "reservation": f"{GROUP}/capacityReservationGroups/g"}
NC = {"machine": "Standard_NC96ads_A100_v4", "count": 2}
ND = {"machine": "Standard_ND96amsr_A100_v4", "count": 2}
NC_HELD: Edits = {"nodes__gpu": NC | {"capacity": RESERVED}}
PINNED = str(images()["azure-ubuntu-24.04-hpc"].reference).rpartition(":")[2]
NEWER = {"platform__image_version": "24.04.2027010100"}
OWN = {"platform__custom_image": f"{GROUP}/images/v100"}
V100 = {MACHINE: "Standard_ND40rs_v2"}

R = {"kind": "reservation", "reservation": "r"}
A2 = {"machine": "a2-highgpu-8g", "count": 1}
A3, TCPX, A4 = ({MACHINE: f"{name}-8g"} for name in ("a3-megagpu", "a3-highgpu", "a4-highgpu"))
NARROW = {"network__cidr": "10.77.0.0/24"}
TCPX_IMAGE = {"platform__custom_image": "projects/p-1/global/images/tcpx"}

BOOT_DISK, ZONE, SERVICES = "platform__boot_disk_type", "platform__filestore__zone", "platform__services_cidr"
IB_NETWORK = {"network__cidr": "172.16.0.0/20"}
C3 = {"head__machine": "c3-standard-44"}
HOST = "platform__hosts__1__"
HOST_IP, PROXY, PROXY_KEY = f"{HOST}private_ip", f"{HOST}proxy_jump", f"{HOST}proxy_host_key"
SAME_ADDRESS = {f"{HOST}address": "203.0.113.10"}
POWER: Edits = {"platform__power_command": ["/usr/local/sbin/power-node", "--rack", "4"]}
ELASTIC_HOSTS: Edits = {
    "scheduler": "slurm",
    "nodes__gpu__elastic": {"min": 0},
    "platform__image": "ubuntu-24.04",
} | POWER
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{'A' * 48}"


def image(provider: str, name: str) -> Edits:
    """Return edits that set the baked image with this name."""
    value = {
        "azure": f"{GROUP}/galleries/g/images/{name}/versions/1.0.0",
        "gcp": f"projects/p-1/global/images/{name}",
        "local": name,
    }
    return {"platform__baked_image": value[provider]}


def own_machine(**facts: Any) -> Edits:
    return {"platform__machines": {"own": {"vcpus": 8, "memory_gib": 64, **facts}}}


def collectives(kind: str, devices: int, **facts: Any) -> Edits:
    """Return edits for a machine type and a number of RDMA devices."""
    names = [f"mlx5_{index}" for index in range(devices)]
    return {"platform__rdma_devices": names, **own_machine(**facts), "head__machine": kind, MACHINE: kind}


def shared(kind: str, size: int | None = None, **more: str) -> Edits:
    return {STORAGE: {"kind": kind, **more, **({"size_gib": size} if size else {})}}


ELASTIC = {"elastic": {"min": 0, "idle_minutes": 20}}
FABRIC = {"placement": "same_fabric"}
CASES: dict[str, tuple[Edits, Edits, str]] = {
    "azure-region": ({}, {"platform__region": "northeurope"}, "platform.region"),
    "azure-zone": ({"platform__zone": "1"}, {"platform__region": "westus", "platform__zone": "1"}, "platform.zone"),
    "azure-size-retired": ({}, {MACHINE: "Standard_NC24rs_v3"}, "nodes.gpu.machine"),
    "azure-image": (V100 | OWN, V100, "nodes.gpu.machine"),
    "azure-image-version": (NEWER, NEWER | OWN, "platform.image_version"),
    "azure-fabric": ({}, {MACHINE: "Standard_ND96is_H100_v5"}, "nodes.gpu.placement"),
    "azure-fabric-size": ({COUNT: 200}, {COUNT: 201}, "nodes.gpu.count"),
    "azure-compact": ({"nodes__gpu": NC | {"placement": "compact"}}, {PLACEMENT: "compact"}, "nodes.gpu.placement"),
    "azure-reservable": (NC_HELD, {"nodes__gpu": ND | {"capacity": RESERVED}}, "nodes.gpu.capacity"),
    "azure-reservation-id": (NC_HELD, NC_HELD | {f"{CAPACITY}__reservation": "mine"}, "nodes.gpu.capacity.reservation"),
    "azure-reservation-zone": (NC_HELD | {"platform__zone": "2"}, NC_HELD, "platform.zone"),
    "azure-reservation-placement": (NC_HELD, NC_HELD | {PLACEMENT: "compact"}, "nodes.gpu.placement"),
    "azure-infiniband-network": ({"nodes__gpu": NC} | IB_NETWORK, IB_NETWORK, "network.cidr"),
    "azure-services-network": (BASTION, BASTION | {SERVICES: "10.77.8.0/24"}, "platform.services_cidr"),
    "azure-storage-kind": ({}, shared("filestore"), "storage.shared.kind"),
    "azure-fabric-idle": ({}, {PLACEMENT: "none"}, "nodes.gpu.placement"),
    "azure-fabric-letter": ({}, {MACHINE: "Standard_ND96is_H100_v5"}, "nodes.gpu.machine"),
    "azure-fabric-unsupported": ({}, {"platform__zone": "1"}, "nodes.gpu.placement"),
    "azure-image-unverified": ({"platform__image_version": PINNED}, NEWER, "platform.image_version"),
    "azure-netapp-pool": (shared("azure_netapp", 2048), shared("azure_netapp", 1500), "storage.shared.size_gib"),
    "azure-files-open": ({}, shared("azure_files"), "storage.shared.kind"),
    "azure-placement": ({"nodes__gpu": NC}, {}, "nodes.gpu.placement"),
    "azure-elastic-fabric": ({"nodes__gpu": NC | ELASTIC}, {"nodes__gpu": ND | ELASTIC | FABRIC}, "nodes.gpu.elastic"),
    "azure-groups-apart": ({}, {"nodes__more": ND | {"placement": "same_fabric"}}, "nodes"),
    "azure-spot": ({}, SPOT, "nodes.gpu.capacity"),
    "azure-unverified": (NC_HELD, NC_HELD | {MACHINE: "Standard_D16s_v5"}, "nodes.gpu.capacity"),
    "gcp-zone": ({}, {"platform__zone": "africa-south1-a"}, "platform.zone"),
    "gcp-boot-disk": ({BOOT_DISK: "pd-balanced"}, {BOOT_DISK: "pd-ssd", **A4}, "platform.boot_disk_type"),
    "gcp-image-fabric": (TCPX | TCPX_IMAGE, TCPX, "nodes.gpu.machine"),
    "gcp-placement": ({PLACEMENT: "compact"}, {PLACEMENT: "same_fabric"}, "nodes.gpu.placement"),
    "gcp-reservation-name": (
        {CAPACITY: R | {"reservation": "projects/p/reservations/r"}, "nodes__more": A2 | {"capacity": R}},
        {CAPACITY: R | {"reservation": "/subscriptions/s/resourceGroups/r"}},
        "nodes.gpu.capacity.reservation",
    ),
    "gcp-dense-reservation": (A4 | {CAPACITY: R}, A4 | {CAPACITY: R, PLACEMENT: "compact"}, "nodes.gpu.placement"),
    "gcp-fabric-network": (A3, A3 | {"platform__fabric_cidr": "10.77.0.0/16"}, "platform.fabric_cidr"),
    "gcp-address-kept": (
        NARROW | {f"nodes__g{n}": A2 for n in range(6)},
        NARROW | {f"nodes__g{n}": A2 | {"count": 30} for n in range(6)},
        "nodes.g5.count",
    ),
    "gcp-storage-kind": ({}, shared("azure_netapp"), "storage.shared.kind"),
    "gcp-filestore-size": ({}, {f"{STORAGE}__size_gib": 500}, "storage.shared.size_gib"),
    "gcp-filestore-region": ({ZONE: "us-central1-f"}, {ZONE: "asia-southeast1-b"}, "platform.filestore.zone"),
    "gcp-filestore-zone": (
        {ZONE: "us-central1-a", "platform__filestore__tier": "REGIONAL"},
        {ZONE: "us-central1-a"},
        "platform.filestore.zone",
    ),
    "gcp-zone-unlisted": ({}, {MACHINE: "g2-standard-48"}, "platform.zone"),
    "gcp-reservation-policy": ({CAPACITY: R}, {CAPACITY: R, PLACEMENT: "compact"}, "nodes.gpu.placement"),
    "gcp-on-demand": (A4 | SPOT, A4, "nodes.gpu.capacity"),
    "gcp-compact-scarce": ({}, {PLACEMENT: "compact"}, "nodes.gpu.placement"),
    "gcp-unverified": (C3 | {"platform__tier_1": False}, C3 | {"platform__tier_1": True}, "platform.tier_1"),
    "hosts-address": (SAME_ADDRESS | {f"{HOST}port": 2222}, SAME_ADDRESS, "platform.hosts.1.address"),
    "hosts-private-ip": ({}, {HOST_IP: "10.19.60.10"}, "platform.hosts.1.private_ip"),
    "hosts-network": ({HOST_IP: "10.19.60.254"}, {HOST_IP: "10.19.61.1"}, "platform.hosts.1.private_ip"),
    "hosts-host-key": ({}, {f"{HOST}host_key": None}, "platform.hosts.1.host_key"),
    "hosts-proxy": ({PROXY: "lambda-1"}, {PROXY: "ubuntu@:x"}, "platform.hosts.1.proxy_jump"),
    "hosts-key-missing": ({}, {"platform__key": "/nowhere/key"}, "platform.key"),
    "hosts-unused": ({}, {"nodes__gpu__hosts": ["lambda-1"]}, "platform.hosts.1"),
    "hosts-head-works": ({}, {"scheduler": "slurm"}, "nodes.gpu.hosts"),
    "hosts-machine": (
        own_machine(gpus=8, gpu_type="h100", fabric="infiniband", rdma=8),
        own_machine(gpus=8),
        "platform.machines.own.gpu_type",
    ),
    "hosts-rdma-devices": (collectives("dgx-h100", 8), collectives("dgx-h100", 7), "platform.rdma_devices"),
    "hosts-power": ({}, POWER, "platform.power_command"),
    "hosts-defaults": ({}, {"access__via": "private"}, "access.via"),
    "hosts-storage": ({}, shared("filestore"), "storage.shared.kind"),
    "hosts-unconfined": ({}, {"scheduler": "slurm"}, "platform.image"),
    "local-network": ({}, {"network": {"cidr": "10.0.0.0/20"}}, "network.cidr"),
    "local-group-size": ({COUNT: 32}, {COUNT: 33}, "nodes.gpu.count"),
    "local-defaults": ({}, BASTION, "access"),
    **{f"{cloud}-tunnel": ({}, BASTION, "access.via") for cloud in ("azure", "gcp")},
    **{f"{cloud}-ssh-way": (BASTION, NO_SSH, "access.allow_ssh_from") for cloud in ("azure", "gcp")},
    **{f"{cloud}-ssh-open": (NARROW_SSH, OPEN_SSH, "access.allow_ssh_from.1") for cloud in ("azure", "gcp")},
    **{
        f"{provider}-image-{rule}": (
            image(provider, current_name(planned(STACKS[provider], {}).plan)),
            image(provider, f"trainyard-{system}-0123456789abcdef"),
            "platform.baked_image",
        )
        for provider, own in {"azure": "ubuntu-24-04", "gcp": "ubuntu-24-04", "local": "debian-13"}.items()
        for rule, system in {"system": "debian-12", "stale": own}.items()
    },
}
"""Check id -> edits to the platform's stack that pass, edits that fail, and the path of the problem in `cluster`."""
SEPARATE = {"hosts-key-private", "local-memory", "local-ports"}
"""Checks that also depend on this computer. They have their own tests."""
CHECKS: dict[str, Check[Planned]] = {
    check.id: check for provider in PLATFORMS for check in platform_facts(provider).checks
}


def problems(check: str, edits: Edits) -> list[Problem]:
    return list(CHECKS[check].run(planned(STACKS[check.partition("-")[0]], edits)))


def paths(check: str, edits: Edits) -> list[str]:
    return [problem.path.removeprefix("cluster.") for problem in problems(check, edits)]


def test_every_rule_has_cases() -> None:
    assert sorted(CHECKS) == sorted([*CASES, *SEPARATE])


@pytest.mark.parametrize("check", CASES)
def test_check_passes_and_fails(check: str) -> None:
    good, bad, path = CASES[check]
    assert paths(check, good) == []
    assert paths(check, bad) == [path]


OTHERS: list[tuple[str, Edits, list[str]]] = [
    # Checks of machines include the head's machine.
    ("azure-size-retired", {"nodes__gpu": NC, "head__machine": "Standard_NC24rs_v3"}, ["head.machine"]),
    ("azure-image", {"nodes__gpu": NC, "head__machine": "Standard_ND40rs_v2"}, ["head.machine"]),
    (
        "azure-infiniband-network",
        {"nodes__gpu": NC, "head__machine": "Standard_ND96isr_H100_v5"} | IB_NETWORK,
        ["network.cidr"],
    ),
    ("gcp-image-fabric", {"head__machine": "a3-highgpu-8g"}, ["head.machine"]),
    ("gcp-zone", {"head__machine": "a2-ultragpu-8g"}, ["platform.zone"]),
    # The services' network must not overlap InfiniBand either.
    ("azure-infiniband-network", BASTION | {SERVICES: "172.16.9.0/24"}, ["platform.services_cidr"]),
    ("gcp-on-demand", {MACHINE: "a3-ultragpu-8g"}, ["nodes.gpu.capacity"]),
    ("gcp-on-demand", {MACHINE: "a2-highgpu-8g"}, []),
    ("gcp-unverified", {MACHINE: "g2-standard-48", "platform__tier_1": False}, ["platform.boot_disk_type"]),
    ("gcp-unverified", {MACHINE: "g2-standard-48", "platform__tier_1": False, BOOT_DISK: "pd-balanced"}, []),
    ("gcp-fabric-network", {"platform__fabric_cidr": "10.200.0.0/18"}, []),
    # A different kind of storage ignores the Filestore's settings.
    ("gcp-filestore-size", shared("head_nfs", 500), []),
    *(
        (f"gcp-filestore-{rule}", shared("head_nfs") | {"platform__filestore": {"zone": "asia-southeast1-b"}}, [])
        for rule in ("region", "zone")
    ),
    ("hosts-proxy", {PROXY: "lambda-2"}, ["platform.hosts.1.proxy_jump"]),  # itself
    ("hosts-proxy", {PROXY: "u@h:70000", PROXY_KEY: KEY}, ["platform.hosts.1.proxy_jump"]),
    ("hosts-proxy", {PROXY: "u@h:22"}, ["platform.hosts.1.proxy_host_key"]),
    ("hosts-proxy", {PROXY: "u@h:22", PROXY_KEY: "what"}, ["platform.hosts.1.proxy_host_key"]),
    ("hosts-proxy", {PROXY: "u@h:22", PROXY_KEY: KEY}, []),
    ("hosts-head-works", {"head__machine": "small-server"}, ["head.machine"]),
    ("hosts-machine", own_machine(rdma=2), ["platform.machines.own.rdma"]),
    ("hosts-machine", own_machine(fabric="infiniband"), ["platform.machines.own.rdma"]),
    ("hosts-machine", own_machine(fabric="roce"), ["platform.machines.own.rdma"]),
    ("hosts-machine", own_machine(fabric="roce", rdma=2), []),
    ("hosts-power", ELASTIC_HOSTS, []),
    ("hosts-power", ELASTIC_HOSTS | {"idle": {"minutes": 60}}, ["idle"]),
    ("hosts-power", ELASTIC_HOSTS | {"platform__image": "debian-12"}, ["nodes.gpu.elastic"]),
    ("hosts-rdma-devices", collectives("own", 0, fabric="roce", rdma=2), ["platform.rdma_devices"]),
    ("hosts-rdma-devices", collectives("own", 2, fabric="roce", rdma=2), []),
    ("hosts-rdma-devices", collectives("own", 3, fabric="roce", rdma=2), ["platform.rdma_devices"]),
    ("hosts-rdma-devices", collectives("dgx-h100", 0), []),
    ("hosts-defaults", SPOT, ["nodes.gpu.capacity"]),
    *(
        ("hosts-storage", shared("head_nfs", path=path), [] if good else ["storage.shared.path"])
        for good, folders in {
            True: ("/raid/trainyard", "/mnt/nvme0/a/b"),
            False: ("/raid", "/shared/x", "/home/x", "/etc/x", "/raid/../etc", "/raid//x", "/raid/x/"),
        }.items()
        for path in folders
    ),
]


@pytest.mark.parametrize(("check", "edits", "found"), OTHERS)
def test_check_reports_exactly_these_paths(check: str, edits: Edits, found: list[str]) -> None:
    assert paths(check, edits) == found


@pytest.mark.parametrize(
    ("check", "edits", "words"),
    [
        ("azure-fabric-letter", CASES["azure-fabric-letter"][1], "use Standard_ND96isr_H100_v5"),
        ("gcp-on-demand", A4, "{kind: reservation, reservation: <name>} or {kind: spot}"),
        ("gcp-filestore-region", CASES["gcp-filestore-region"][1], "Filestore is then in us-central1-f"),
        ("gcp-fabric-network", A3 | {"platform__fabric_cidr": "10.200.0.0/18"}, "room for 4 networks of /20, and GPU"),
        ("hosts-host-key", {f"{HOST}host_key": "SHA256:abc"}, "yard hosts scan 203.0.113.11:22"),
    ],
)
def test_a_message_names_the_value_to_use(check: str, edits: Edits, words: str) -> None:
    [problem] = problems(check, edits)
    assert words in problem.line("f")


@pytest.mark.parametrize(
    ("tier", "size", "fits"),
    [
        ("ZONAL", 1023, "1024"),
        ("ZONAL", 1024, None),
        ("ZONAL", 1025, "1280"),
        ("ZONAL", 10240, None),
        ("ZONAL", 10496, "12800"),
        ("ZONAL", 12800, None),
        ("BASIC_SSD", 1024, "2560"),
        ("BASIC_HDD", 1025, None),
        ("BASIC_HDD", 70000, "65433"),
        ("ENTERPRISE", 10496, "10240"),
    ],
)
def test_filestore_sizes_depend_on_the_tier(tier: str, size: int, fits: str | None) -> None:
    found = problems("gcp-filestore-size", {"platform__filestore": {"tier": tier}, f"{STORAGE}__size_gib": size})
    assert [problem.fix for problem in found] == ([] if fits is None else [f"use {fits}"])


def test_a_private_key_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    for mode, found in {0o600: [], 0o640: ["platform.key"]}.items():
        file.chmod(mode)
        assert paths("hosts-key-private", {"platform__key": str(file)}) == found


_NEEDED_MIB = 1024 + 2 * 1024 + 3 * 740
"""Memory that the local stack needs, with 740 MiB for each QEMU process."""


def on_computer(check: str, *used: int, memory: int = _NEEDED_MIB) -> list[Problem]:
    """Run a check of the local stack on a computer where other programs use some ports."""
    computer = Computer(
        free_memory=lambda plan: memory, used_ports=lambda plan, ports: [port for port in ports if port in used]
    )
    return list(CHECKS[check].run(replace(planned("local", {}), computer=computer)))


def test_too_little_memory_and_used_ports_are_refused() -> None:
    assert on_computer("local-memory") == on_computer("local-ports") == []
    assert [problem.path for problem in on_computer("local-memory", memory=_NEEDED_MIB - 1)] == ["cluster.nodes"]
    [problem] = on_computer("local-ports", 22101, 22102, 22400)
    assert problem.path == "cluster.platform.ssh_port_base"
    assert problem.rule.startswith("ports 22101, 22102 on 127.0.0.1 are in use by another program")
    assert problem.fix.startswith("write `ssh_port_base: 22700` there")
    [problem] = on_computer("local-ports", *range(65536))
    assert problem.fix == "choose a different port base there"


@pytest.mark.parametrize(
    ("provider", "edits", "quota", "amount"),
    [
        ("azure", {}, "cores", 2 * 96 + 8),
        ("azure", {}, "standardDSv5Family", 8),
        ("azure", {}, "standard NDAMSv4_A100Family", 2 * 96),
        ("azure", SPOT, "cores", 8),
        ("azure", SPOT, "lowPriorityCores", 2 * 96),
        ("azure", {}, "PublicIPAddresses", 2),
        ("azure", {"access": {"via": "private"}}, "PublicIPAddresses", 1),
        ("azure", shared("azure_netapp", 2049), "totalTiBsPerSubscription", 3),
        ("gcp", {}, "NVIDIA_A100_GPUS", 16),
        ("gcp", {"nodes__gpu__driver": "none"}, "NVIDIA_A100_GPUS", 16),
        ("gcp", {}, "A2_CPUS", 2 * 96),
        ("gcp", SPOT, "A2_CPUS", 2 * 96),
        ("gcp", A3, "GPUS_ALL_REGIONS", 16),
        ("gcp", {}, "SSD_TOTAL_GB", 3 * 200),
        ("gcp", shared("head_nfs", 4096), "SSD_TOTAL_GB", 3 * 200 + 4096),
        ("gcp", A4, "HDB_TOTAL_GB", 2 * 200),
        ("gcp", {}, "EnterpriseStorageGibPerRegion", 10240),
        ("gcp", {"platform__filestore": {"tier": "BASIC_SSD"}}, "PremiumStorageGbPerRegion", 10240),
        ("gcp", {}, "NETWORKS", 1),
        ("gcp", A3, "NETWORKS", 9),
        ("gcp", A4, "NETWORKS", 3),
        ("gcp", {}, "STATIC_ADDRESSES", 1),
        ("gcp", SPOT, "PREEMPTIBLE_NVIDIA_A100_GPUS", 16),
        ("gcp", {"nodes__gpu": {"machine": "n2-standard-8", "count": 2} | {"capacity": SPOT[CAPACITY]}}, "N2_CPUS", 24),
    ],
)
def test_each_resource_uses_its_quota(provider: str, edits: Edits, quota: str, amount: int) -> None:
    plan = planned(STACKS[provider], edits).plan
    needs = {need.quota: need.amount for need in quota_needs(plan)}
    assert needs[quota] == amount
    assert {need.region for need in quota_needs(plan)} == {plan.region}
    assert len([name for name in needs if name.endswith("NVIDIA_A100_GPUS")]) <= 1


@pytest.mark.parametrize(
    ("placement", "capacity", "zone", "kind", "reason"),
    [
        ("none", "on_demand", None, PlacementKind.NONE, "none"),
        ("none", "spot", "1", PlacementKind.NONE, "none"),
        ("compact", "on_demand", None, PlacementKind.PROXIMITY, "data centre"),
        ("same_fabric", "on_demand", None, PlacementKind.AVAILABILITY_SET, "one fabric"),
        ("same_fabric", "on_demand", "2", PlacementKind.SCALE_SET, "zone"),
        ("same_fabric", "spot", None, PlacementKind.SCALE_SET, "Spot"),
        ("same_fabric", "spot", "2", PlacementKind.SCALE_SET, "Spot"),
    ],
)
def test_azure_placement_depends_on_capacity_and_zone(
    placement: str, capacity: str, zone: str | None, kind: PlacementKind, reason: str
) -> None:
    edits = {PLACEMENT: placement, CAPACITY: {"kind": capacity}, "platform__zone": zone}
    chosen, why = placement_of(planned("azure-a100", edits).plan, "gpu")
    assert chosen is kind
    assert reason in why


def test_the_catalogs_facts_of_each_cloud_are_consistent() -> None:
    for family in families().values():
        assert set(family.zones) <= set(zone_facts().names), family.name
    facts = region_facts()
    assert set(facts.machines) | facts.everywhere == set(machines("azure"))
    assert not set(facts.machines) & facts.everywhere
    assert {region for regions in facts.machines.values() for region in regions} <= set(facts.regions.names)
    assert list(sizes()) == list(machines("azure"))
    for name, size in sizes().items():
        row = machines("azure")[name]
        assert (row.rdma > 0) == (size.largest_fabric is not None), name
        assert (row.rdma > 0) == row.fabric.startswith("infiniband"), name
