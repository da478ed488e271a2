"""SSH ports of local machines, and the memory and ports that are free on this computer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.platforms.local import computer
from components.platforms.local.rules import ssh_port
from components.spec.cluster import MAX_GROUPS
from tests.components.platforms.recording import planned

PLAN = planned("local", {}).plan


def ports(base: int, **counts: int) -> dict[str, int]:
    nodes = {name: {"machine": "vm-gpu2", "count": count} for name, count in counts.items()}
    plan = planned("local", {"nodes": nodes}).plan
    return {host.name: ssh_port(base, plan, host) for host in plan.hosts}


def test_a_larger_group_changes_no_ports_of_other_groups() -> None:
    small, large = ports(22100, gpu=1, big=1), ports(22100, gpu=32, big=32)
    assert small == {"yard-head": 22100, "yard-gpu-0": 22101, "yard-big-0": 22133}
    assert small.items() <= large.items()
    assert len(set(large.values())) == len(large)


def test_the_last_port_of_the_highest_base_is_valid() -> None:
    assert max(ports(60000, **{f"g{index}": 32 for index in range(MAX_GROUPS)}).values()) <= 65535


def test_available_memory_is_read_from_the_kernel() -> None:
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")]
    assert 0 < computer._available_mib() <= int(line.split()[1]) // 1024


@pytest.mark.parametrize(("head", "is_used"), [("yard-head", False), ("other-head", True)])
def test_only_ports_of_the_same_stack_are_free(
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
        assert computer.used_ports(PLAN, [port]) == ([port] if is_used else [])
        machine.kill()
