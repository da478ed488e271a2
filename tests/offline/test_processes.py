"""Tests for `is_running`, which looks up another process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from offline.processes import is_running

ROOT = Path(__file__).parents[2]
CODE = ("components", "yard", "offline", "tools")


def test_a_live_process_runs() -> None:
    assert is_running(os.getpid())


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    # With WNOWAIT, the child process remains a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(child.pid, 0)
    assert not is_running(child.pid)
    child.wait()


def test_a_reaped_process_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not is_running(child.pid)


@pytest.mark.parametrize("folder", CODE)
def test_no_code_checks_processes_with_signal_zero(folder: str) -> None:
    signal_zero = ("os.kill(", ", 0)")
    lines = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if all(part in line for part in signal_zero)
    ]
    assert lines == [], "use offline.processes.is_running or a pidfd"
