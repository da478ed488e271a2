"""Names and addresses of hosts in a plan."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from components.catalog import Machine, images
from components.plan.plan import ClusterPlan, Role, group_capacity, plan_cluster
from components.spec.cluster import MAX_GROUPS
from components.stackfile.read import cluster_spec

LONGEST = "abcdefghijklmnop"


def plan(
    machines: dict[str, Machine], counts: dict[str, int], cidr: str = "10.77.0.0/20", name: str = "c"
) -> ClusterPlan:
    spec = cluster_spec(
        {
            "name": name,
            "platform": {"provider": "local"},
            "network": {"cidr": cidr},
            "head": {"machine": "vm-head"},
            "nodes": {group: {"machine": "vm-gpu2", "count": count} for group, count in counts.items()},
        }
    )
    return plan_cluster(spec, machines, images()["debian-13"])


def test_head_is_first_and_has_the_fifth_address(local_machines: dict[str, Machine]) -> None:
    planned = plan(local_machines, {"gpu": 2})
    assert [host.name for host in planned.hosts] == ["c-head", "c-gpu-0", "c-gpu-1"]
    assert [str(host.private_ip) for host in planned.hosts] == ["10.77.0.4", "10.77.2.1", "10.77.2.2"]
    assert [host.role for host in planned.hosts] == [Role.HEAD, Role.WORKER, Role.WORKER]


@pytest.mark.parametrize("cidr", ["10.77.0.0/24", "10.77.0.0/20", "10.64.0.0/12"])
def test_names_addresses_and_slots_are_unique(cidr: str, local_machines: dict[str, Machine]) -> None:
    network = IPv4Network(cidr)
    count = min(group_capacity(network), 300)
    groups = [f"{LONGEST[:14]}-{index}" for index in range(MAX_GROUPS - 1)] + ["g"]
    planned = plan(local_machines, dict.fromkeys(groups, count), cidr, LONGEST)
    size = 1 + MAX_GROUPS * count
    assert len({host.name for host in planned.hosts}) == size
    assert len({host.private_ip for host in planned.hosts}) == size
    assert len({host.slot for host in planned.hosts}) == size
    assert all(host.private_ip in network for host in planned.hosts)
    assert network.broadcast_address not in {host.private_ip for host in planned.hosts}
    assert max(len(host.name) for host in planned.hosts) <= 63


def test_larger_group_keeps_other_hosts(local_machines: dict[str, Machine]) -> None:
    small = plan(local_machines, {"a": 1, "b": 2})
    grown = plan(local_machines, {"a": 30, "b": 2})
    assert small.group("b") == grown.group("b")
    assert small.group("a") == grown.group("a")[:1]
    assert small.head == grown.head


def test_appended_group_keeps_other_hosts(local_machines: dict[str, Machine]) -> None:
    before, after = plan(local_machines, {"a": 2}), plan(local_machines, {"a": 2, "b": 1})
    assert after.hosts[: len(before.hosts)] == before.hosts
    assert list(after.groups) == ["a", "b"]


@pytest.mark.parametrize(("cidr", "capacity"), [("10.0.0.0/24", 30), ("10.0.0.0/20", 510), ("10.0.0.0/16", 8190)])
def test_group_capacity(cidr: str, capacity: int) -> None:
    assert group_capacity(IPv4Network(cidr)) == capacity
