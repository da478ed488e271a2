"""Checks for GCP stacks."""

from __future__ import annotations

import pytest

from components.plan.check import Check, Planned
from components.platforms.demand import quota_needs
from components.platforms.gcp.facts import FACTS
from components.platforms.gcp.spec import families, zone_facts
from tests.components.platforms.planning import Edits, current_name, planned

STACK = "gcp-a2"
CURRENT = current_name(planned(STACK, {}).plan)
"""Name of the image that `yard bake` builds for the stack."""


def baked(name: str) -> str:
    return f"projects/p-1/global/images/{name}"


CASES: dict[str, tuple[Edits, Edits, str]] = {
    "gcp-zone": ({}, {"platform__zone": "africa-south1-a"}, "cluster.platform.zone"),
    "gcp-boot-disk": (
        {"platform__boot_disk_type": "pd-balanced"},
        {"platform__boot_disk_type": "pd-ssd", "nodes__gpu__machine": "a4-highgpu-8g"},
        "cluster.platform.boot_disk_type",
    ),
    "gcp-image-fabric": (
        {"nodes__gpu__machine": "a3-highgpu-8g", "platform__custom_image": "projects/p-1/global/images/tcpx"},
        {"nodes__gpu__machine": "a3-highgpu-8g"},
        "cluster.nodes.gpu.machine",
    ),
    "gcp-placement": (
        {"nodes__gpu__placement": "compact"},
        {"nodes__gpu__placement": "same_fabric"},
        "cluster.nodes.gpu.placement",
    ),
    "gcp-reservation-name": (
        {
            "nodes__gpu__capacity": {"kind": "reservation", "reservation": "projects/p/reservations/r"},
            "nodes__more": {
                "machine": "a2-highgpu-8g",
                "count": 1,
                "capacity": {"kind": "reservation", "reservation": "mine-2"},
            },
        },
        {"nodes__gpu__capacity": {"kind": "reservation", "reservation": "/subscriptions/s/resourceGroups/r"}},
        "cluster.nodes.gpu.capacity.reservation",
    ),
    "gcp-dense-reservation": (
        {"nodes__gpu__machine": "a4-highgpu-8g", "nodes__gpu__capacity": {"kind": "reservation", "reservation": "r"}},
        {
            "nodes__gpu__machine": "a4-highgpu-8g",
            "nodes__gpu__capacity": {"kind": "reservation", "reservation": "r"},
            "nodes__gpu__placement": "compact",
        },
        "cluster.nodes.gpu.placement",
    ),
    "gcp-fabric-network": (
        {"nodes__gpu__machine": "a3-megagpu-8g"},
        {"nodes__gpu__machine": "a3-megagpu-8g", "platform__fabric_cidr": "10.77.0.0/16"},
        "cluster.platform.fabric_cidr",
    ),
    "gcp-address-kept": (
        {
            "network__cidr": "10.77.0.0/24",
            **{f"nodes__g{n}": {"machine": "a2-highgpu-8g", "count": 1} for n in range(6)},
        },
        {
            "network__cidr": "10.77.0.0/24",
            **{f"nodes__g{n}": {"machine": "a2-highgpu-8g", "count": 30} for n in range(6)},
        },
        "cluster.nodes.g5.count",
    ),
    "gcp-ssh-way": ({"access": {"via": "bastion"}}, {"access": {"via": "public"}}, "cluster.access.allow_ssh_from"),
    "gcp-ssh-open": (
        {"access__allow_ssh_from": ["10.0.0.0/8"]},
        {"access__allow_ssh_from": ["0.0.0.0/0"]},
        "cluster.access.allow_ssh_from.0",
    ),
    "gcp-storage-kind": ({}, {"storage__shared": {"kind": "azure_netapp"}}, "cluster.storage.shared.kind"),
    "gcp-filestore-size": (
        {},
        {"storage__shared__size_gib": 500},
        "cluster.storage.shared.size_gib",
    ),
    "gcp-filestore-region": (
        {"platform__filestore": {"zone": "us-central1-f"}},
        {"platform__filestore": {"zone": "asia-southeast1-b"}},
        "cluster.platform.filestore.zone",
    ),
    "gcp-filestore-zone": (
        {"platform__filestore": {"zone": "us-central1-f"}},
        {"platform__filestore": {"zone": "us-central1-a"}},
        "cluster.platform.filestore.zone",
    ),
    "gcp-zone-unlisted": ({}, {"nodes__gpu__machine": "g2-standard-48"}, "cluster.platform.zone"),
    "gcp-reservation-policy": (
        {"nodes__gpu__capacity": {"kind": "reservation", "reservation": "r"}},
        {"nodes__gpu__capacity": {"kind": "reservation", "reservation": "r"}, "nodes__gpu__placement": "compact"},
        "cluster.nodes.gpu.placement",
    ),
    "gcp-on-demand": (
        {"nodes__gpu__machine": "a4-highgpu-8g", "nodes__gpu__capacity": {"kind": "spot"}},
        {"nodes__gpu__machine": "a4-highgpu-8g"},
        "cluster.nodes.gpu.capacity",
    ),
    "gcp-tunnel": ({}, {"access": {"via": "bastion"}}, "cluster.access.via"),
    "gcp-compact-scarce": ({}, {"nodes__gpu__placement": "compact"}, "cluster.nodes.gpu.placement"),
    "gcp-unverified": (
        {"platform__tier_1": False, "head__machine": "c3-standard-44"},
        {"platform__tier_1": True, "head__machine": "c3-standard-44"},
        "cluster.platform.tier_1",
    ),
    "gcp-image-system": (
        {"platform__baked_image": baked(CURRENT)},
        {"platform__baked_image": baked("trainyard-debian-13-0123456789abcdef")},
        "cluster.platform.baked_image",
    ),
    "gcp-image-stale": (
        {"platform__baked_image": baked(CURRENT)},
        {"platform__baked_image": baked("trainyard-ubuntu-24-04-0123456789abcdef")},
        "cluster.platform.baked_image",
    ),
}
"""Check id -> edits to gcp-a2 that pass, edits that fail, and the path of the problem."""


def paths(check: Check[Planned], edits: Edits) -> list[str]:
    return [problem.path for problem in check.run(planned(STACK, edits))]


def test_every_rule_has_cases() -> None:
    assert sorted(rule.id for rule in FACTS.checks) == sorted(CASES)


@pytest.mark.parametrize("rule", FACTS.checks, ids=lambda rule: rule.id)
def test_check_passes_and_fails(rule: Check[Planned]) -> None:
    good, bad, path = CASES[rule.id]
    assert paths(rule, good) == []
    assert paths(rule, bad) == [path]


def rule(name: str) -> Check[Planned]:
    return next(rule for rule in FACTS.checks if rule.id == name)


def said(name: str, edits: Edits) -> str:
    [problem] = rule(name).run(planned(STACK, edits))
    return problem.line("f")


@pytest.mark.parametrize(
    ("check", "machine", "path"),
    [
        ("gcp-image-fabric", "a3-highgpu-8g", "cluster.head.machine"),
        ("gcp-zone", "a2-ultragpu-8g", "cluster.platform.zone"),
    ],
)
def test_checks_include_the_heads_machine(check: str, machine: str, path: str) -> None:
    assert paths(rule(check), {"head__machine": machine}) == [path]


@pytest.mark.parametrize("machine", ["a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g"])
def test_scarce_on_demand_machines_get_a_warning(machine: str) -> None:
    line = said("gcp-on-demand", {"nodes__gpu__machine": machine})
    assert "{kind: reservation, reservation: <name>} or {kind: spot}" in line


def test_an_a100_on_demand_gets_no_warning() -> None:
    assert not paths(rule("gcp-on-demand"), {"nodes__gpu__machine": "a2-highgpu-8g"})


def test_every_zone_of_a_family_is_a_zone() -> None:
    for family in families().values():
        assert set(family.zones) <= set(zone_facts().names), family.name


def test_unverified_boot_disk_is_reported_unless_it_was_set() -> None:
    asked = {"nodes__gpu__machine": "g2-standard-48", "platform__tier_1": False}
    assert paths(rule("gcp-unverified"), asked) == ["cluster.platform.boot_disk_type"]
    assert paths(rule("gcp-unverified"), asked | {"platform__boot_disk_type": "pd-balanced"}) == []


def test_a_regional_filestore_is_in_every_zone() -> None:
    edits = {"platform__filestore": {"zone": "us-central1-a", "tier": "REGIONAL"}}
    assert paths(rule("gcp-filestore-zone"), edits) == []


def test_filestore_in_another_region_is_refused_with_a_fix() -> None:
    line = said("gcp-filestore-region", {"platform__filestore": {"zone": "asia-southeast1-b"}})
    assert "us-central1" in line
    assert "slowly" in line
    assert line.endswith("Filestore is then in us-central1-f.")


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
    edits = {"platform__filestore": {"tier": tier}, "storage__shared__size_gib": size}
    problems = list(rule("gcp-filestore-size").run(planned(STACK, edits)))
    assert [problem.fix for problem in problems] == ([] if fits is None else [f"use {fits}"])


def test_a_small_fabric_range_reports_the_needed_subnets() -> None:
    edits = {"nodes__gpu__machine": "a3-megagpu-8g", "platform__fabric_cidr": "10.200.0.0/18"}
    assert "room for 4 networks of /20, and GPU interfaces need 8" in said("gcp-fabric-network", edits)
    assert paths(rule("gcp-fabric-network"), edits | {"nodes__gpu__machine": "a2-highgpu-8g"}) == []


@pytest.mark.parametrize(("machine", "networks"), [("a3-megagpu-8g", 9), ("a4-highgpu-8g", 3)])
def test_the_quota_counts_all_networks(machine: str, networks: int) -> None:
    needs = {need.quota: need.amount for need in quota_needs(planned(STACK, {"nodes__gpu__machine": machine}).plan)}
    assert needs["NETWORKS"] == networks


def test_filestore_rules_ignore_other_storage() -> None:
    edits = {
        "storage__shared": {"kind": "head_nfs", "size_gib": 500},
        "platform__filestore": {"zone": "asia-southeast1-b"},
    }
    for name in ("gcp-filestore-size", "gcp-filestore-region", "gcp-filestore-zone"):
        assert paths(rule(name), edits) == []


NFS = {"kind": "head_nfs", "size_gib": 4096}


@pytest.mark.parametrize(
    ("edits", "quota", "amount"),
    [
        ({}, "NVIDIA_A100_GPUS", 16),
        ({}, "A2_CPUS", 2 * 96),
        ({"nodes__gpu__capacity": {"kind": "spot"}}, "A2_CPUS", 2 * 96),
        ({"nodes__gpu__machine": "a3-megagpu-8g"}, "GPUS_ALL_REGIONS", 16),
        ({}, "SSD_TOTAL_GB", 3 * 200),
        ({"storage__shared": NFS}, "SSD_TOTAL_GB", 3 * 200 + 4096),
        ({"nodes__gpu__machine": "a4-highgpu-8g"}, "HDB_TOTAL_GB", 2 * 200),
        ({}, "EnterpriseStorageGibPerRegion", 10240),
        ({"platform__filestore": {"tier": "BASIC_SSD"}}, "PremiumStorageGbPerRegion", 10240),
        ({}, "NETWORKS", 1),
        ({}, "STATIC_ADDRESSES", 1),
        ({"nodes__gpu__capacity": {"kind": "spot"}}, "PREEMPTIBLE_NVIDIA_A100_GPUS", 16),
        ({"nodes__gpu": {"machine": "n2-standard-8", "count": 2, "capacity": {"kind": "spot"}}}, "N2_CPUS", 24),
    ],
)
def test_each_kind_of_capacity_uses_its_quota(edits: Edits, quota: str, amount: int) -> None:
    needs = {need.quota: need.amount for need in quota_needs(planned(STACK, edits).plan)}
    assert needs[quota] == amount
    assert len([name for name in needs if name.endswith("NVIDIA_A100_GPUS")]) <= 1
