"""Names and addresses of hosts in a plan."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from components.plan.plan import ClusterPlan, group_capacity
from components.spec.cluster import MAX_GROUPS
from tests.components.platforms.recording import planned

LONGEST = "abcdefghijklmnop"


def plan(counts: dict[str, int], cidr: str = "10.77.0.0/20", name: str = "c") -> ClusterPlan:
    nodes = {group: {"machine": "vm-gpu2", "count": count} for group, count in counts.items()}
    return planned("local", {"name": name, "network__cidr": cidr, "nodes": nodes}).plan


@pytest.mark.parametrize("cidr", ["10.77.0.0/24", "10.77.0.0/20", "10.64.0.0/12"])
def test_names_addresses_and_slots_are_unique(cidr: str) -> None:
    network = IPv4Network(cidr)
    count = min(group_capacity(network), 300)
    groups = [f"{LONGEST[:14]}-{index}" for index in range(MAX_GROUPS - 1)] + ["g"]
    made = plan(dict.fromkeys(groups, count), cidr, LONGEST)
    assert made.hosts[0].private_ip == network[4]
    size = 1 + MAX_GROUPS * count
    assert len({host.name for host in made.hosts}) == size
    assert len({host.private_ip for host in made.hosts}) == size
    assert len({host.slot for host in made.hosts}) == size
    assert all(host.private_ip in network for host in made.hosts)
    assert network.broadcast_address not in {host.private_ip for host in made.hosts}
    assert max(len(host.name) for host in made.hosts) <= 63


def test_larger_and_appended_groups_keep_other_hosts() -> None:
    small, grown, appended = (
        plan(counts) for counts in ({"a": 1, "b": 2}, {"a": 30, "b": 2}, {"a": 1, "b": 2, "c": 1})
    )
    assert small.head == grown.head
    assert small.group("a") == grown.group("a")[:1]
    assert small.group("b") == grown.group("b")
    assert appended.hosts[: len(small.hosts)] == small.hosts
    assert list(appended.groups) == ["a", "b", "c"]


@pytest.mark.parametrize(("cidr", "capacity"), [("10.0.0.0/24", 30), ("10.0.0.0/20", 510), ("10.0.0.0/16", 8190)])
def test_group_capacity(cidr: str, capacity: int) -> None:
    assert group_capacity(IPv4Network(cidr)) == capacity
