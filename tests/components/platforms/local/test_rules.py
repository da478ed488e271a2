"""Checks and SSH ports of local stacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.catalog import images, machines
from components.node.bake import baked_name
from components.plan.checks.base import Check, Planned
from components.plan.plan import plan_cluster
from components.platforms.local import memory
from components.platforms.local.facts import FACTS
from components.platforms.local.image import image_id
from components.platforms.local.ports import ssh_port
from components.platforms.local.spec import LocalSpec
from components.stackfile.spec import MAX_GROUPS, ClusterSpec

_NEEDED_MIB = 1024 + 2 * 1024 + 1536 + 4 * 350
"""Memory that the stack from `made` needs, with 350 MiB for each QEMU process."""


def made(**changes: Any) -> Planned:
    base = {
        "name": "yard",
        "platform": {"provider": "local"},
        "head": {"machine": "vm-head"},
        "nodes": {"gpu": {"machine": "vm-gpu2", "count": 2}, "big": {"machine": "vm-gpu2-large", "count": 1}},
    }
    spec = ClusterSpec.model_validate({**base, **changes})
    return Planned(plan=plan_cluster(spec, machines("local"), images()["debian-13"]))


def baked(image: str) -> Planned:
    return made(platform={"provider": "local", "baked_image": image})


def ports(nodes: dict[str, Any]) -> dict[str, int]:
    plan = made(nodes=nodes).plan
    return {host.name: ssh_port(22100, plan, host) for host in plan.hosts}


def test_a_larger_group_changes_no_ports_of_other_groups() -> None:
    small = ports({"gpu": {"machine": "vm-gpu2", "count": 1}, "big": {"machine": "vm-gpu2", "count": 1}})
    large = ports({"gpu": {"machine": "vm-gpu2", "count": 32}, "big": {"machine": "vm-gpu2", "count": 32}})
    assert small == {"yard-head": 22100, "yard-gpu-0": 22101, "yard-big-0": 22133}
    assert small.items() <= large.items()
    assert len(set(large.values())) == len(large)


CASES: dict[str, tuple[Planned, str]] = {
    "local-network": (made(network={"cidr": "10.0.0.0/20"}), "cluster.network.cidr"),
    "local-group-size": (made(nodes={"gpu": {"machine": "vm-gpu2", "count": 33}}), "cluster.nodes.gpu.count"),
    "local-defaults": (made(access={"via": "bastion"}), "cluster.access"),
    "local-memory": (replace(made(), free_memory=lambda _: _NEEDED_MIB - 1), "cluster.nodes"),
    "local-image-system": (baked("trainyard-debian-12-0123456789abcdef"), "cluster.platform.baked_image"),
    "local-image-stale": (baked("trainyard-debian-13-0123456789abcdef"), "cluster.platform.baked_image"),
}
"""Check id -> a stack that the check rejects, and the path of the problem."""


def test_every_check_has_a_case() -> None:
    assert sorted(check.id for check in FACTS.checks) == sorted(CASES)


@pytest.mark.parametrize("check", FACTS.checks, ids=lambda check: check.id)
def test_check_accepts_and_refuses(check: Check[Planned]) -> None:
    assert list(check.run(replace(made(), free_memory=lambda _: _NEEDED_MIB))) == []
    bad, path = CASES[check.id]
    assert [problem.path for problem in check.run(bad)] == [path]


@pytest.mark.parametrize("rule", ["local-image-system", "local-image-stale"])
def test_the_image_of_this_stack_is_accepted(rule: str) -> None:
    [check] = [check for check in FACTS.checks if check.id == rule]
    current = baked_name(made().plan, image_id())
    assert list(check.run(baked(current))) == []


def test_memory_of_running_machines_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_mib", lambda: 1000)
    monkeypatch.setattr(memory, "_used_mib", lambda _: 24)
    assert memory.free_memory(made().plan) == 1024


def test_available_memory_is_read_from_the_kernel() -> None:
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert 0 < memory._available_mib() <= int(line.split()[1]) // 1024


def test_the_last_port_of_the_highest_base_is_valid() -> None:
    groups = {f"g{index}": {"machine": "vm-gpu2", "count": 32} for index in range(MAX_GROUPS)}
    planned = made(nodes=groups, platform={"provider": "local", "ssh_port_base": 60000})
    base, plan = planned.plan.platform_spec(LocalSpec).ssh_port_base, planned.plan
    assert max(ssh_port(base, plan, host) for host in plan.hosts) <= 65535
