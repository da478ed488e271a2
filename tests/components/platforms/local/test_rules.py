"""Checks and SSH ports of local stacks."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.catalog import images, machines
from components.node.bake import baked_name
from components.plan.check import Check, Computer, Planned
from components.plan.plan import plan_cluster
from components.platforms.local import computer
from components.platforms.local.facts import FACTS
from components.platforms.local.image_build import image_id
from components.platforms.local.rules import ssh_port
from components.platforms.local.spec import LocalSpec
from components.spec.cluster import MAX_GROUPS
from components.stackfile.read import cluster_spec

_NEEDED_MIB = 1024 + 2 * 1024 + 1536 + 4 * 350
"""Memory that the stack from `made` needs, with 350 MiB for each QEMU process."""


def made(**changes: Any) -> Planned:
    base = {
        "name": "yard",
        "platform": {"provider": "local"},
        "head": {"machine": "vm-head"},
        "nodes": {"gpu": {"machine": "vm-gpu2", "count": 2}, "big": {"machine": "vm-gpu2-large", "count": 1}},
    }
    spec = cluster_spec({**base, **changes})
    return Planned(plan=plan_cluster(spec, machines("local"), images()["debian-13"]))


def on_computer(*used: int, memory: int = _NEEDED_MIB) -> Planned:
    """The stack from `made` on a computer where other programs use some ports."""
    computer = Computer(
        free_memory=lambda plan: memory, used_ports=lambda plan, ports: [port for port in ports if port in used]
    )
    return replace(made(), computer=computer)


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
    "local-memory": (on_computer(memory=_NEEDED_MIB - 1), "cluster.nodes"),
    "local-ports": (on_computer(22101, 22102), "cluster.platform.ssh_port_base"),
    "local-image-system": (baked("trainyard-debian-12-0123456789abcdef"), "cluster.platform.baked_image"),
    "local-image-stale": (baked("trainyard-debian-13-0123456789abcdef"), "cluster.platform.baked_image"),
}
"""Check id -> a stack that the check rejects, and the path of the problem."""


def test_every_check_has_a_case() -> None:
    assert sorted(check.id for check in FACTS.checks) == sorted(CASES)


@pytest.mark.parametrize("check", FACTS.checks, ids=lambda check: check.id)
def test_check_accepts_and_refuses(check: Check[Planned]) -> None:
    assert list(check.run(on_computer())) == []
    bad, path = CASES[check.id]
    assert [problem.path for problem in check.run(bad)] == [path]


@pytest.mark.parametrize("rule", ["local-image-system", "local-image-stale"])
def test_the_image_of_this_stack_is_accepted(rule: str) -> None:
    [check] = [check for check in FACTS.checks if check.id == rule]
    current = baked_name(made().plan, image_id())
    assert list(check.run(baked(current))) == []


def test_memory_of_running_machines_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computer, "_available_mib", lambda: 1000)
    monkeypatch.setattr(computer, "_used_mib", lambda _: 24)
    assert computer.free_memory(made().plan) == 1024


def test_available_memory_is_read_from_the_kernel() -> None:
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert 0 < computer._available_mib() <= int(line.split()[1]) // 1024


def test_the_last_port_of_the_highest_base_is_valid() -> None:
    groups = {f"g{index}": {"machine": "vm-gpu2", "count": 32} for index in range(MAX_GROUPS)}
    planned = made(nodes=groups, platform={"provider": "local", "ssh_port_base": 60000})
    base, plan = planned.plan.platform_spec(LocalSpec).ssh_port_base, planned.plan
    assert max(ssh_port(base, plan, host) for host in plan.hosts) <= 65535


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_used_ports_are_named_with_a_free_base() -> None:
    [check] = [check for check in FACTS.checks if check.id == "local-ports"]
    [problem] = check.run(on_computer(22101, 22133, 22400))
    assert problem.rule.startswith("ports 22101, 22133 on 127.0.0.1 are in use by another program")
    assert problem.fix.startswith("write `ssh_port_base: 22700` there")
    [problem] = check.run(on_computer(*range(65536)))
    assert problem.fix == "choose a different port base there"


def test_a_port_of_another_program_is_used(listening: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computer, "runs_folder", lambda: tmp_path)
    assert computer.used_ports(made().plan, [listening]) == [listening]


@pytest.mark.parametrize(("head", "is_used"), [("yard-head", False), ("other-head", True)])
def test_a_port_of_the_same_stack_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, is_used: bool
) -> None:
    monkeypatch.setattr(computer, "runs_folder", lambda: tmp_path)
    (tmp_path / "stack" / head).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = f"import socket; s = socket.create_server(('127.0.0.1', {port})); print('on', flush=True); input()"
    options = ("-pidfile", str(tmp_path / "stack" / head / "qemu.pid"), f"user,hostfwd=tcp:127.0.0.1:{port}-:22")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", listen, *options], **pipes) as machine:
        assert machine.stdout is not None
        assert machine.stdout.readline() == b"on\n"
        assert computer.used_ports(made().plan, [port]) == ([port] if is_used else [])
        machine.kill()
