"""Checks for Azure stacks."""

from __future__ import annotations

import pytest

from components.catalog import images, machines
from components.plan.check import Check, Planned
from components.platforms.azure.facts import FACTS
from components.platforms.azure.spec import region_facts, sizes
from components.platforms.demand import quota_needs
from tests.components.platforms.planning import Edits, current_name, planned

RESERVED = {
    "kind": "reservation",
    "reservation": "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/capacityReservationGroups/g",
}
NC = {"machine": "Standard_NC96ads_A100_v4", "count": 2}
ND = {"machine": "Standard_ND96amsr_A100_v4", "count": 2}
PINNED = str(images()["azure-ubuntu-24.04-hpc"].reference).rpartition(":")[2]
OWN = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/images/v100"

STACK = "azure-a100"
CURRENT = current_name(planned(STACK, {}).plan)
"""Name of the image that `yard bake` builds for the stack."""


def baked(name: str) -> str:
    return f"/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/galleries/g/images/{name}/versions/1.0.0"


CASES: dict[str, tuple[Edits, Edits, str]] = {
    "azure-region": ({}, {"platform__region": "northeurope"}, "cluster.platform.region"),
    "azure-zone": (
        {"platform__zone": "1"},
        {"platform__region": "westus", "platform__zone": "1"},
        "cluster.platform.zone",
    ),
    "azure-size-retired": ({}, {"nodes__gpu__machine": "Standard_NC24rs_v3"}, "cluster.nodes.gpu.machine"),
    "azure-image": (
        {"nodes__gpu__machine": "Standard_ND40rs_v2", "platform__custom_image": OWN},
        {"nodes__gpu__machine": "Standard_ND40rs_v2"},
        "cluster.nodes.gpu.machine",
    ),
    "azure-image-version": (
        {"platform__image_version": "24.04.2027010100"},
        {"platform__image_version": "24.04.2027010100", "platform__custom_image": OWN},
        "cluster.platform.image_version",
    ),
    "azure-fabric": ({}, {"nodes__gpu__machine": "Standard_ND96is_H100_v5"}, "cluster.nodes.gpu.placement"),
    "azure-fabric-size": ({"nodes__gpu__count": 200}, {"nodes__gpu__count": 201}, "cluster.nodes.gpu.count"),
    "azure-compact": (
        {"nodes__gpu": NC | {"placement": "compact"}},
        {"nodes__gpu__placement": "compact"},
        "cluster.nodes.gpu.placement",
    ),
    "azure-reservable": (
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        {"nodes__gpu": ND | {"capacity": RESERVED}},
        "cluster.nodes.gpu.capacity",
    ),
    "azure-reservation-id": (
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        {"nodes__gpu": NC | {"capacity": RESERVED | {"reservation": "mine"}}},
        "cluster.nodes.gpu.capacity.reservation",
    ),
    "azure-reservation-zone": (
        {"nodes__gpu": NC | {"capacity": RESERVED}, "platform__zone": "2"},
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        "cluster.platform.zone",
    ),
    "azure-reservation-placement": (
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        {"nodes__gpu": NC | {"capacity": RESERVED, "placement": "compact"}},
        "cluster.nodes.gpu.placement",
    ),
    "azure-infiniband-network": (
        {"nodes__gpu": NC, "network__cidr": "172.16.0.0/20"},
        {"network__cidr": "172.16.0.0/20"},
        "cluster.network.cidr",
    ),
    "azure-services-network": (
        {"access": {"via": "bastion"}},
        {"access": {"via": "bastion"}, "platform__services_cidr": "10.77.8.0/24"},
        "cluster.platform.services_cidr",
    ),
    "azure-ssh-way": ({"access": {"via": "bastion"}}, {"access": {"via": "public"}}, "cluster.access.allow_ssh_from"),
    "azure-ssh-open": (
        {"access__allow_ssh_from": ["10.0.0.0/8", "203.0.113.7/32"]},
        {"access__allow_ssh_from": ["203.0.113.7/32", "0.0.0.0/1"]},
        "cluster.access.allow_ssh_from.1",
    ),
    "azure-storage-kind": ({}, {"storage__shared": {"kind": "filestore"}}, "cluster.storage.shared.kind"),
    "azure-fabric-idle": ({}, {"nodes__gpu__placement": "none"}, "cluster.nodes.gpu.placement"),
    "azure-fabric-letter": (
        {},
        {"nodes__gpu": {"machine": "Standard_ND96is_H100_v5", "count": 2}},
        "cluster.nodes.gpu.machine",
    ),
    "azure-fabric-unsupported": ({}, {"platform__zone": "1"}, "cluster.nodes.gpu.placement"),
    "azure-image-unverified": (
        {"platform__image_version": PINNED},
        {"platform__image_version": "24.04.2027010100"},
        "cluster.platform.image_version",
    ),
    "azure-netapp-pool": (
        {"storage__shared": {"kind": "azure_netapp", "size_gib": 2048}},
        {"storage__shared": {"kind": "azure_netapp", "size_gib": 1500}},
        "cluster.storage.shared.size_gib",
    ),
    "azure-files-open": ({}, {"storage__shared": {"kind": "azure_files"}}, "cluster.storage.shared.kind"),
    "azure-placement": ({"nodes__gpu": NC}, {}, "cluster.nodes.gpu.placement"),
    "azure-groups-apart": ({}, {"nodes__more": ND | {"placement": "same_fabric"}}, "cluster.nodes"),
    "azure-spot": ({}, {"nodes__gpu__capacity": {"kind": "spot"}}, "cluster.nodes.gpu.capacity"),
    "azure-tunnel": ({}, {"access": {"via": "bastion"}}, "cluster.access.via"),
    "azure-unverified": (
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        {"nodes__gpu": NC | {"machine": "Standard_D16s_v5", "capacity": RESERVED}},
        "cluster.nodes.gpu.capacity",
    ),
    "azure-image-system": (
        {"platform__baked_image": baked(CURRENT)},
        {"platform__baked_image": baked("trainyard-debian-13-0123456789abcdef")},
        "cluster.platform.baked_image",
    ),
    "azure-image-stale": (
        {"platform__baked_image": baked(CURRENT)},
        {"platform__baked_image": baked("trainyard-ubuntu-24-04-0123456789abcdef")},
        "cluster.platform.baked_image",
    ),
}
"""Check id -> edits to azure-a100 that pass, edits that fail, and the path of the problem."""


def test_every_rule_has_cases() -> None:
    assert sorted(rule.id for rule in FACTS.checks) == sorted(CASES)


@pytest.mark.parametrize("rule", FACTS.checks, ids=lambda rule: rule.id)
def test_check_passes_and_fails(rule: Check[Planned]) -> None:
    good, bad, path = CASES[rule.id]
    assert list(rule.run(planned(STACK, good))) == []
    assert [problem.path for problem in rule.run(planned(STACK, bad))] == [path]


@pytest.mark.parametrize(
    ("check", "machine", "path"),
    [
        ("azure-size-retired", "Standard_NC24rs_v3", "cluster.head.machine"),
        ("azure-image", "Standard_ND40rs_v2", "cluster.head.machine"),
        ("azure-infiniband-network", "Standard_ND96isr_H100_v5", "cluster.network.cidr"),
    ],
)
def test_checks_include_the_heads_machine(check: str, machine: str, path: str) -> None:
    [rule] = [rule for rule in FACTS.checks if rule.id == check]
    edits: Edits = {"nodes__gpu": NC, "head__machine": machine, "network__cidr": "172.16.0.0/20"}
    assert [problem.path for problem in rule.run(planned(STACK, edits))] == [path]


def test_services_network_must_not_overlap_infiniband() -> None:
    [rule] = [rule for rule in FACTS.checks if rule.id == "azure-infiniband-network"]
    edits: Edits = {"access": {"via": "bastion"}, "platform__services_cidr": "172.16.9.0/24"}
    assert [problem.path for problem in rule.run(planned(STACK, edits))] == ["cluster.platform.services_cidr"]


def test_a_size_without_infiniband_reports_its_variant_with_it() -> None:
    [rule] = [rule for rule in FACTS.checks if rule.id == "azure-fabric-letter"]
    [problem] = rule.run(planned(STACK, CASES[rule.id][1]))
    assert "Standard_ND96isr_H100_v5" in problem.fix


@pytest.mark.parametrize(
    ("edits", "quota", "amount"),
    [
        ({}, "cores", 2 * 96 + 8),
        ({}, "PublicIPAddresses", 2),
        ({"access": {"via": "private"}}, "PublicIPAddresses", 1),
        ({"storage__shared": {"kind": "azure_netapp", "size_gib": 2049}}, "totalTiBsPerSubscription", 3),
    ],
)
def test_quotas_include_addresses_and_storage(edits: Edits, quota: str, amount: int) -> None:
    needs = {need.quota: need.amount for need in quota_needs(planned(STACK, edits).plan)}
    assert needs[quota] == amount


def test_every_machine_type_has_its_regions() -> None:
    facts = region_facts()
    assert set(facts.machines) | facts.everywhere == set(machines("azure"))
    assert not set(facts.machines) & facts.everywhere
    assert {region for regions in facts.machines.values() for region in regions} <= set(facts.regions.names)


def test_every_azure_machine_type_has_consistent_facts() -> None:
    assert list(sizes()) == list(machines("azure"))
    for name, size in sizes().items():
        row = machines("azure")[name]
        assert (row.rdma > 0) == (size.largest_fabric is not None), name
        assert (row.rdma > 0) == row.fabric.startswith("infiniband"), name
