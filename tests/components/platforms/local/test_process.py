"""Processes that are identified by their pidfile, and the ports and memory that are free on this computer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components.platforms.local import computer
from components.platforms.local.process import end, find, set_niceness, started_under, wait_gone
from components.platforms.local.rules import ssh_port
from components.spec.cluster import MAX_GROUPS
from tests.components.platforms.recording import planned
from tests.offline.loopback_sshd import free_port

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process with the given arguments. A stubborn process ignores SIGTERM."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, stubborn: bool = False) -> subprocess.Popen[bytes]:
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        program = f"import signal, time; {ignore} print(1, flush=True); time.sleep(600)"
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("content", ["", "no number", "999999999", "another process", "ours"])
def test_a_process_is_found_only_by_its_pidfile(tmp_path: Path, start: Start, content: str) -> None:
    pidfile = tmp_path / "qemu.pid"
    process = start("-pidfile", str(pidfile))
    assert find(pidfile) is None
    pidfile.write_text({"another process": str(os.getpid()), "ours": str(process.pid)}.get(content, content))
    assert find(pidfile) == (process.pid if content == "ours" else None)


def test_processes_are_found_by_the_folder_of_their_pidfile(tmp_path: Path, start: Start) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "ab"
    process = start("-p", str(ours / "switch.pid"))
    start("-p", str(theirs / "switch.pid"))
    assert started_under(ours) == [process.pid]


@pytest.mark.parametrize("stubborn", [False, True])
def test_end_ends_the_process(tmp_path: Path, start: Start, stubborn: bool) -> None:
    process = start("-pidfile", str(tmp_path / "qemu.pid"), stubborn=stubborn)
    end(process.pid, seconds=0.3)
    assert process.wait(2) != 0


def test_a_process_without_a_pidfile_is_not_ended(start: Start) -> None:
    process = start("-x", "/somewhere")
    end(process.pid, seconds=0.2)
    assert process.poll() is None


def test_wait_gone_ends_with_the_process_or_the_timeout(tmp_path: Path, start: Start) -> None:
    process = start("-pidfile", str(tmp_path / "qemu.pid"))
    begin = time.monotonic()
    assert not wait_gone(process.pid, 0.1)
    process.kill()
    assert wait_gone(process.pid, 5)
    assert time.monotonic() - begin < 4


def test_set_niceness_changes_the_session() -> None:
    grouped = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not grouped.exists() or grouped.read_text().strip() != "1":
        pytest.skip("this kernel does not group processes by session")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        set_niceness(other.pid, 3)
        said = Path(f"/proc/{other.pid}/autogroup").read_text()
        other.kill()
    assert said.split()[-2:] == ["nice", "3"]
    set_niceness(other.pid, 3)  # ignores an ended process


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
    assert 0 < computer.available_mib() <= int(line.split()[1]) // 1024


@pytest.mark.parametrize(("head", "is_used"), [("yard-head", False), ("other-head", True)])
def test_only_ports_of_the_same_stack_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, is_used: bool
) -> None:
    monkeypatch.setattr(computer, "runs_folder", lambda: tmp_path)
    (tmp_path / "stack" / head).mkdir(parents=True)
    port = free_port()
    listen = f"import socket; s = socket.create_server(('127.0.0.1', {port})); print('on', flush=True); input()"
    options = ("-pidfile", str(tmp_path / "stack" / head / "qemu.pid"), f"user,hostfwd=tcp:127.0.0.1:{port}-:22")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", listen, *options], **pipes) as machine:
        assert machine.stdout is not None
        assert machine.stdout.readline() == b"on\n"
        assert computer.used_ports(PLAN, [port]) == ([port] if is_used else [])
        machine.kill()
