"""Networks and addresses are a pure function of the plan."""

from __future__ import annotations

from ipaddress import IPv4Network

from components.platforms.gcp.layout import Layout, layout
from components.platforms.gcp.spec import Spec
from components.stackfile import parse_stack
from tests.platforms.recording import stack_text

FABRIC = IPv4Network("10.192.0.0/10")


def of(stack: str, **edits: object) -> Layout:
    parsed = parse_stack(stack_text(stack, **edits), "test")
    assert isinstance(parsed.spec.platform, Spec)
    return layout(parsed.plan, parsed.spec.platform.fabric_cidr, parsed.spec.platform.zone)


def test_no_two_subnets_overlap_whatever_the_families() -> None:
    mixed = of(
        "gcp-a3-mega",
        platform__zone="us-central1-b",
        nodes__old={"machine": "a2-highgpu-8g", "count": 3},
        nodes__new={"machine": "a4-highgpu-8g", "count": 3},
    )
    ranges = [subnet.cidr for net in mixed.networks for subnet in net.subnets]
    assert len(ranges) == 9 + 8
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]
    assert all(subnet.subnet_of(FABRIC) for subnet in ranges[1:])


def test_families_that_share_a_network_agree_on_the_smaller_packet() -> None:
    mixed = of("gcp-a3-mega", platform__zone="us-central1-b", nodes__new={"machine": "a4-highgpu-8g", "count": 3})
    assert [net.mtu for net in mixed.networks] == [8244] * 9 + [8896]


def test_growing_a_group_moves_nobody() -> None:
    small, large = (parse_stack(stack_text("gcp-a3-mega", nodes__gpu__count=count), "t").plan for count in (2, 500))
    before, after = layout(small, FABRIC, "us-central1-a"), layout(large, FABRIC, "us-central1-a")
    for host in small.hosts:
        assert before.cards(host) == after.cards(host)


def test_a_cluster_of_plain_machines_has_one_network() -> None:
    assert len(of("gcp-a2").networks) == 1
