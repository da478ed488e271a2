"""Tests for plans with existing hosts: addresses and stable names."""

from __future__ import annotations

from typing import Any

import pytest

from components.node.handover import hostfile
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.plan.plan import ClusterPlan, Role
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text
from trainyard.errors import StackFileError

KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{'A' * 48}"


def listed(*ips: str) -> list[dict[str, Any]]:
    """Return hosts a, b, c... with the given private addresses."""
    return [
        {"name": chr(ord("a") + index), "address": f"203.0.113.{index}", "private_ip": ip, "host_key": KEY}
        for index, ip in enumerate(ips)
    ]


def plan(hosts: list[dict[str, Any]], group: list[str], head: str | None = None) -> ClusterPlan:
    text = stack_text(
        "baremetal-h100",
        platform__hosts=hosts,
        platform__image="debian-13",
        silence=[],
        head={"machine": "small-server", "host": head},
        nodes={"gpu": {"machine": "dgx-h100", "hosts": group}},
    )
    return parse_stack(text, "test").plan


def test_the_head_is_the_first_host_by_default() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7", "10.40.0.9")
    assert plan(hosts, ["b", "c"]).head.name == "a"
    named = plan(hosts, ["a", "c"], head="b")
    assert (named.head.name, named.head.role, named.head.runs_jobs) == ("b", Role.HEAD, False)
    assert [host.name for host in named.workers] == ["a", "c"]


def test_removing_a_host_changes_no_other_host() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7", "10.40.0.9")
    before = plan(hosts, ["b", "c"])
    after = plan([hosts[0], hosts[2]], ["c"])
    assert (before.workers[1].name, before.workers[1].private_ip) == (
        after.workers[0].name,
        after.workers[0].private_ip,
    )


def test_the_default_name_is_derived_from_the_address() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7")
    del hosts[1]["name"]
    assert plan(hosts, ["host-203-0-113-1"]).workers[0].name == "host-203-0-113-1"


def test_two_hosts_with_the_same_name_are_refused() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7")
    hosts[1]["name"] = "a"
    with pytest.raises(StackFileError, match=r"platform\.hosts: a is the name of two hosts"):
        plan(hosts, ["a"])


def test_slurm_has_explicit_names_and_addresses() -> None:
    made = plan(listed("10.40.0.4", "10.40.0.7", "10.40.0.9", "10.40.0.10"), ["b", "c", "d"])
    nodes = [line for line in render_slurm_conf(made).splitlines() if line.startswith("NodeName")]
    assert [line.split()[:2] for line in nodes] == [
        ["NodeName=b", "NodeAddr=10.40.0.7"],
        ["NodeName=c,d", "NodeAddr=10.40.0.[9-10]"],
    ]
    assert "Nodes=b,c,d " in render_slurm_conf(made)
    assert "NodeName=b,c,d Name=gpu Type=h100" in render_gres_conf(made)


def test_a_head_that_runs_jobs_is_a_node_of_the_outputs() -> None:
    made = parse_stack(stack_text("lambda-a6000"), "test").plan
    assert hostfile(made) == "lambda-1 slots=4\nlambda-2 slots=4\n"
    assert [host.name for host in made.nodes] == ["lambda-1", "lambda-2"]
    assert [host.name for host in made.workers] == ["lambda-2"]
