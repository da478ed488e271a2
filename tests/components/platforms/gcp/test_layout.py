"""Tests for the networks and addresses of GCP clusters."""

from __future__ import annotations

from ipaddress import IPv4Network

from components.platforms.gcp.layout import NetworkLayout, cards, networks
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text

FABRIC = IPv4Network("10.192.0.0/10")


def of(stack: str, **edits: object) -> tuple[NetworkLayout, ...]:
    return networks(parse_stack(stack_text(stack, **edits), "test").plan)


def test_subnets_do_not_overlap() -> None:
    mixed = of(
        "gcp-a3-mega",
        platform__zone="us-central1-b",
        nodes__old={"machine": "a2-highgpu-8g", "count": 3},
        nodes__new={"machine": "a4-highgpu-8g", "count": 3},
    )
    ranges = [subnet.cidr for net in mixed for subnet in net.subnets]
    assert len(ranges) == 9 + 8
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]
    assert all(subnet.subnet_of(FABRIC) for subnet in ranges[1:])


def test_families_on_one_network_use_the_smaller_mtu() -> None:
    mixed = of("gcp-a3-mega", platform__zone="us-central1-b", nodes__new={"machine": "a4-highgpu-8g", "count": 3})
    assert [net.mtu for net in mixed] == [8244] * 9 + [8896]


def test_a_larger_group_does_not_move_other_hosts() -> None:
    small, large = (parse_stack(stack_text("gcp-a3-mega", nodes__gpu__count=count), "t").plan for count in (2, 500))
    for host in small.hosts:
        assert cards(networks(small), host) == cards(networks(large), host)


def test_a_cluster_of_plain_machines_has_one_network() -> None:
    assert len(of("gcp-a2")) == 1
