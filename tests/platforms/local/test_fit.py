"""What a stack may ask of this machine, and ports that never move."""

from __future__ import annotations

from typing import Any

import pytest

from components.catalog import images, machines
from components.plan import ClusterPlan, plan_cluster
from components.platforms.local import fit
from components.spec import MAX_GROUPS, ClusterSpec


def made(**changes: Any) -> tuple[ClusterSpec, ClusterPlan]:
    base = {
        "name": "yard",
        "platform": {"provider": "local"},
        "head": {"machine": "vm-head"},
        "nodes": {"gpu": {"machine": "vm-gpu2", "count": 2}, "big": {"machine": "vm-gpu2-large", "count": 1}},
    }
    spec = ClusterSpec.model_validate({**base, **changes})
    return spec, plan_cluster(spec, machines("local"), images()["debian-13"])


def ports(nodes: dict[str, Any]) -> dict[str, int]:
    _, plan = made(nodes=nodes)
    return {host.name: fit.ssh_port(22100, plan, host) for host in plan.hosts}


def test_a_group_that_grows_moves_no_other_port() -> None:
    small = ports({"gpu": {"machine": "vm-gpu2", "count": 1}, "big": {"machine": "vm-gpu2", "count": 1}})
    large = ports({"gpu": {"machine": "vm-gpu2", "count": 32}, "big": {"machine": "vm-gpu2", "count": 32}})
    assert small == {"yard-head": 22100, "yard-gpu-0": 22101, "yard-big-0": 22133}
    assert small.items() <= large.items()
    assert len(set(large.values())) == len(large)


def test_a_stack_that_fits_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "available_mib", lambda: 100_000)
    assert fit.problems(*made()) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"network": {"cidr": "10.0.0.0/20"}}, "cluster.network.cidr"),
        ({"nodes": {"gpu": {"machine": "vm-gpu2", "count": 33}}}, "cluster.nodes.gpu.count"),
    ],
)
def test_a_stack_that_does_not_is_told_where_and_what_to_do(
    changes: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "available_mib", lambda: 1_000_000)
    problems = fit.problems(*made(**changes))
    assert [problem.path for problem in problems] == [path]
    assert problems[0].fix


def test_the_highest_base_leaves_room_for_the_last_port() -> None:
    groups = {f"g{index}": {"machine": "vm-gpu2", "count": 32} for index in range(MAX_GROUPS)}
    spec, plan = made(nodes=groups, platform={"provider": "local", "ssh_port_base": 60000})
    base = spec.platform.model_dump()["ssh_port_base"]
    assert max(fit.ssh_port(base, plan, host) for host in plan.hosts) <= 65535


def test_memory_of_all_machines_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 1024 + 2 * 1024 + 1536 + 4 * 350
    monkeypatch.setattr(fit, "held_mib", lambda _: 0)
    monkeypatch.setattr(fit, "available_mib", lambda: needed)
    assert fit.problems(*made()) == []
    monkeypatch.setattr(fit, "available_mib", lambda: needed - 1)
    assert [problem.path for problem in fit.problems(*made())] == ["cluster.nodes"]
    # Machines of this very plan that run already make room for themselves.
    monkeypatch.setattr(fit, "held_mib", lambda _: 1)
    assert fit.problems(*made()) == []
