"""Every rule of Azure has a stack that it passes and one that it finds fault with."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from components.catalog import images, machines
from components.checks.base import Check, Planned
from components.demand import quota_needs
from components.plan import plan_cluster
from components.platforms.azure.regions import region_facts
from components.platforms.azure.rules import RULES
from components.platforms.azure.sizes import sizes
from components.spec import ClusterSpec
from tests.platforms.recording import stack_text

Edits = dict[str, Any]

RESERVED = {
    "kind": "reservation",
    "reservation": "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/capacityReservationGroups/g",
}
NC = {"machine": "Standard_NC96ads_A100_v4", "count": 2}
ND = {"machine": "Standard_ND96amsr_A100_v4", "count": 2}
PINNED = str(images()["azure-ubuntu-24.04-hpc"].reference).rpartition(":")[2]
OWN = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/images/v100"

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
    "azure-container": ({"nodes__gpu": NC}, {}, "cluster.nodes.gpu.placement"),
    "azure-groups-apart": ({}, {"nodes__more": ND | {"placement": "same_fabric"}}, "cluster.nodes"),
    "azure-spot": ({}, {"nodes__gpu__capacity": {"kind": "spot"}}, "cluster.nodes.gpu.capacity"),
    "azure-tunnel": ({}, {"access": {"via": "bastion"}}, "cluster.access.via"),
    "azure-unconfirmed": (
        {"nodes__gpu": NC | {"capacity": RESERVED}},
        {"nodes__gpu": NC | {"machine": "Standard_D16s_v5", "capacity": RESERVED}},
        "cluster.nodes.gpu.capacity",
    ),
}
"""Check id -> what it passes, what it refuses, and where; edits of the stack azure-a100."""


def planned(edits: Edits) -> Planned:
    document = yaml.safe_load(stack_text("azure-a100", **edits))
    spec = ClusterSpec.model_validate(document["config"]["trainyard:cluster"])
    return Planned(spec=spec, plan=plan_cluster(spec, machines("azure"), images()[spec.platform.image]))


def test_every_rule_has_cases() -> None:
    assert [rule.id for rule in RULES] == list(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_passes_and_refuses(rule: Check[Planned]) -> None:
    good, bad, path = CASES[rule.id]
    assert list(rule.run(planned(good))) == []
    assert [problem.path for problem in rule.run(planned(bad))] == [path]


@pytest.mark.parametrize(
    ("check", "machine", "path"),
    [
        ("azure-size-retired", "Standard_NC24rs_v3", "cluster.head.machine"),
        ("azure-image", "Standard_ND40rs_v2", "cluster.head.machine"),
        ("azure-infiniband-network", "Standard_ND96isr_H100_v5", "cluster.network.cidr"),
    ],
)
def test_the_heads_machine_is_no_exception(check: str, machine: str, path: str) -> None:
    [rule] = [rule for rule in RULES if rule.id == check]
    edits: Edits = {"nodes__gpu": NC, "head__machine": machine, "network__cidr": "172.16.0.0/20"}
    assert [problem.path for problem in rule.run(planned(edits))] == [path]


def test_the_services_addresses_must_leave_infinibands_alone_too() -> None:
    [rule] = [rule for rule in RULES if rule.id == "azure-infiniband-network"]
    edits: Edits = {"access": {"via": "bastion"}, "platform__services_cidr": "172.16.9.0/24"}
    assert [problem.path for problem in rule.run(planned(edits))] == ["cluster.platform.services_cidr"]


def test_who_forgot_the_letter_is_told_the_size_that_has_it() -> None:
    [rule] = [rule for rule in RULES if rule.id == "azure-fabric-letter"]
    [problem] = rule.run(planned(CASES[rule.id][1]))
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
def test_quotas_of_a_stack(edits: Edits, quota: str, amount: int) -> None:
    needs = {need.quota: need.amount for need in quota_needs(planned(edits).plan)}
    assert needs[quota] == amount


def test_every_machine_type_has_its_regions() -> None:
    facts = region_facts()
    assert set(facts.machines) | facts.everywhere == set(machines("azure"))
    assert not set(facts.machines) & facts.everywhere
    assert {region for regions in facts.machines.values() for region in regions} <= set(facts.regions.names)


def test_every_machine_type_has_its_facts_of_azure_and_they_agree() -> None:
    assert list(sizes()) == list(machines("azure"))
    for name, size in sizes().items():
        row = machines("azure")[name]
        assert (row.rdma > 0) == (size.largest_fabric is not None), name
        assert (row.rdma > 0) == row.fabric.startswith("infiniband"), name
