"""run_pulumi: exit codes, forwarded signals, and termination of child processes. The tests start real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yard.stack.pulumi import run_pulumi, session_members

pytestmark = pytest.mark.engine

DRIVER = """
import os, sys
from yard.stack.pulumi import run_pulumi
sys.exit(run_pulumi(sys.argv[1:], os.environ))
"""

PULUMI_THAT_NOTES = """
import pathlib, signal, sys, time
folder, noted = pathlib.Path(sys.argv[1]), []
def note(number, frame):
    noted.append(number)
    (folder / "notes").write_text("i\\n" * len(noted))
    if len(noted) == 2:
        sys.exit(3)
signal.signal(signal.SIGINT, note)
(folder / "ready").write_text("\\n")
for _ in range(600):  # ends after 30 s if the test fails
    time.sleep(0.05)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose `pulumi` is bash, so the tests pass the arguments `-c SCRIPT`."""
    (tmp_path / "pulumi").symlink_to("/bin/bash")
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.fixture
def driven(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a fake pulumi with run_pulumi. The fake pulumi logs interrupts and exits after the second
    interrupt."""
    script = f"exec {sys.executable} -c '{PULUMI_THAT_NOTES}' {tmp_path}"
    process = subprocess.Popen([sys.executable, "-c", DRIVER, "-c", script], env=environment)
    wait_for(tmp_path / "ready")
    yield process
    process.kill()
    process.wait()


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.02)


def test_exit_code_of_pulumi_is_returned(environment: dict[str, str]) -> None:
    assert run_pulumi(["-c", "exit 7"], environment) == 7


def test_exit_code_after_a_signal_is_128_plus_its_number(environment: dict[str, str]) -> None:
    assert run_pulumi(["-c", "kill -KILL $$"], environment) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_is_forwarded_as_one_interrupt(
    driven: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    driven.send_signal(number)
    wait_for(tmp_path / "notes")
    assert driven.poll() is None, "the first interrupt must let pulumi finish"
    driven.send_signal(signal.SIGINT)
    assert driven.wait(20) == 3
    assert (tmp_path / "notes").read_text() == "i\ni\n"


def test_plugins_of_a_killed_pulumi_are_ended(environment: dict[str, str], tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.pid"
    run_pulumi(["-c", f"sleep 300 & echo $! >{plugin}; echo $$ >{plugin}.session; kill -KILL $$"], environment)
    assert session_members(int(Path(f"{plugin}.session").read_text())) == []
    state = Path(f"/proc/{plugin.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_processes_outside_the_session_keep_running(environment: dict[str, str], tmp_path: Path) -> None:
    note = tmp_path / "machine.pid"
    run_pulumi(
        ["-c", f"setsid bash -c 'echo $$ >{note}; exec sleep 300' & while [[ ! -s {note} ]]; do :; done"], environment
    )
    pid = int(note.read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)
