"""Names and addresses of hosts in a plan."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from components.catalog import images, machines
from components.plan.plan import ClusterPlan, group_capacity, plan_cluster
from components.spec.cluster import MAX_GROUPS
from components.stackfile.read import cluster_spec

LONGEST = "abcdefghijklmnop"


def plan(counts: dict[str, int], cidr: str = "10.77.0.0/20", name: str = "c") -> ClusterPlan:
    spec = cluster_spec(
        {
            "name": name,
            "platform": {"provider": "local"},
            "network": {"cidr": cidr},
            "head": {"machine": "vm-head"},
            "nodes": {group: {"machine": "vm-gpu2", "count": count} for group, count in counts.items()},
        }
    )
    return plan_cluster(spec, machines("local"), images()["debian-13"])


@pytest.mark.parametrize("cidr", ["10.77.0.0/24", "10.77.0.0/20", "10.64.0.0/12"])
def test_names_addresses_and_slots_are_unique(cidr: str) -> None:
    network = IPv4Network(cidr)
    count = min(group_capacity(network), 300)
    groups = [f"{LONGEST[:14]}-{index}" for index in range(MAX_GROUPS - 1)] + ["g"]
    planned = plan(dict.fromkeys(groups, count), cidr, LONGEST)
    assert planned.hosts[0].private_ip == network[4]
    size = 1 + MAX_GROUPS * count
    assert len({host.name for host in planned.hosts}) == size
    assert len({host.private_ip for host in planned.hosts}) == size
    assert len({host.slot for host in planned.hosts}) == size
    assert all(host.private_ip in network for host in planned.hosts)
    assert network.broadcast_address not in {host.private_ip for host in planned.hosts}
    assert max(len(host.name) for host in planned.hosts) <= 63


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
