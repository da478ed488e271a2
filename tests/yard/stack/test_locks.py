"""Locks in a file backend: only locks held by dead processes are removed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import StackError
from yard.stack.pulumi import clear_stale


def put_lock(backend: Path, pid: int, host: str | None = None) -> Path:
    """Write a lock file as the Pulumi CLI does."""
    lock = backend / ".pulumi" / "locks" / "organization" / "trainyard" / "local" / "0a1b.json"
    lock.parent.mkdir(parents=True)
    holder = {
        "pid": pid,
        "username": "u",
        "hostname": host or socket.gethostname(),
        "timestamp": "2026-01-02T03:04:05Z",
    }
    lock.write_text(json.dumps(holder))
    return lock


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_lock_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    pid = dead_pid()
    lock = put_lock(tmp_path, pid)
    assert clear_stale(tmp_path, "local") == [pid]
    assert not lock.exists()


def test_lock_is_removed_if_its_pid_is_another_program(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        lock = put_lock(tmp_path, process.pid)
        assert clear_stale(tmp_path, "local") == [process.pid]
        process.kill()
    assert not lock.exists()


def test_lock_of_a_live_pulumi_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "pulumi"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        lock = put_lock(tmp_path, process.pid)
        with pytest.raises(StackError, match=rf"in use: pulumi process {process.pid} .*Fix: "):
            clear_stale(tmp_path, "local")
        process.kill()
    assert lock.exists()


def test_lock_of_another_machine_is_kept(tmp_path: Path) -> None:
    lock = put_lock(tmp_path, dead_pid(), host="elsewhere")
    with pytest.raises(StackError, match=r"on elsewhere since .*Fix: "):
        clear_stale(tmp_path, "local")
    assert lock.exists()


def test_unreadable_lock_is_reported(tmp_path: Path) -> None:
    lock = put_lock(tmp_path, 1)
    lock.write_text("{")
    with pytest.raises(StackError, match=str(lock)):
        clear_stale(tmp_path, "local")


def test_missing_backend_folder_has_no_locks(tmp_path: Path) -> None:
    assert clear_stale(tmp_path / "absent", "local") == []
