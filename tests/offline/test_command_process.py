"""The command plugin as a process: startup by the engine, and clean-up at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offline.values import Properties
from tests.offline.loopback_sshd import Sshd
from tests.offline.plugin import REMOTE, Engine, Plugin

pytestmark = pytest.mark.engine

_ROOT = Path(__file__).parents[2]
_SECONDS = 10
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

Start = Callable[[], tuple[subprocess.Popen[str], Plugin]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The plugin, as a symbolic link like the one that set-up installs."""
    link = tmp_path / "pulumi-resource-command"
    link.symlink_to(_ROOT / "offline" / "bin" / "pulumi-resource-command")
    return link


@pytest.fixture
def started(program: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the plugin. Checks at the end that no temporary files are left behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    processes = []

    def start() -> tuple[subprocess.Popen[str], Plugin]:
        environment = {**os.environ, "PATH": _PATH, "TMPDIR": str(temporary)}
        process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
        )
        processes.append(process)
        assert process.stdout
        with process.stdout:
            return process, Plugin(int(process.stdout.readline()), Engine())

    yield start
    for process in processes:
        assert process.stdin
        process.stdin.close()
        process.terminate()
        process.wait(_SECONDS)
    assert list(temporary.iterdir()) == []


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _commands() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_plugin_and_its_connections(started: Start, sshd: Sshd, number: int) -> None:
    process, plugin = started()
    plugin.create(REMOTE, {"connection": sshd.connection(), "create": "true"})
    process.send_signal(number)
    assert process.wait(_SECONDS) == 0
    _wait_until(lambda: "Received disconnect" in sshd.log.read_text())


def test_a_killed_plugin_leaves_no_connection(started: Start, sshd: Sshd) -> None:
    process, plugin = started()
    plugin.create(REMOTE, {"connection": sshd.connection(), "create": "true"})
    process.kill()
    process.wait()
    _wait_until(lambda: "Connection closed by" in sshd.log.read_text())


def test_the_plugin_ends_when_its_input_closes(started: Start) -> None:
    process, _ = started()
    assert process.stdin
    process.stdin.close()
    assert process.wait(_SECONDS) == 0


@pytest.mark.parametrize("cancel_first", [True, False])
def test_an_end_during_a_command_ends_the_command(started: Start, sshd: Sshd, cancel_first: bool) -> None:
    process, plugin = started()
    name = f"sleep 62.{sshd.port}"
    command: Properties = {"connection": sshd.connection(), "create": name}
    failures: list[str] = []
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(REMOTE, command))))
    runs.start()
    _wait_until(lambda: name in _commands())
    if cancel_first:
        plugin.cancel()
        runs.join()
    process.send_signal(signal.SIGINT)
    assert process.wait(_SECONDS) == 0
    runs.join()
    assert failures == ["cancelled"]
    assert name not in _commands()
