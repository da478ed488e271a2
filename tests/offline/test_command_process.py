"""The plugin as the process that the engine starts: how it is found, and that it leaves nothing."""

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

_PROGRAM = Path(__file__).parents[2] / "offline" / "bin" / "pulumi-resource-command"
_SECONDS = 10


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the plugin may keep files; a short path, as sockets need one."""
    folder = Path("/tmp") / f"ty-{os.getpid()}-{tmp_path.name[-8:]}"  # noqa: S108 - removed when it is empty
    folder.mkdir()
    return folder


@pytest.fixture
def started(temporary: Path, tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Plugin]]]:
    """Starts the plugin through a symbolic link, as set-up installs it. Ends it, and checks what it leaves."""
    link = tmp_path / "pulumi-resource-command"
    link.symlink_to(_PROGRAM)
    processes = []

    def start() -> tuple[subprocess.Popen[str], Plugin]:
        search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": search, "TMPDIR": str(temporary)}
        process = subprocess.Popen(
            [link], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
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
    temporary.rmdir()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _gone(process: int) -> bool:
    """Tell whether a process ended, even if whoever inherited it has not looked yet."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True


def _commands() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked_and_takes_its_connections_along(
    started: Callable[[], tuple[subprocess.Popen[str], Plugin]], sshd: Sshd, temporary: Path, number: int
) -> None:
    process, plugin = started()
    plugin.create(REMOTE, {"connection": sshd.connection(), "create": "true"})
    assert f"ssh -F {temporary}" in _commands()
    assert not list(temporary.rglob("*.key"))
    process.send_signal(number)
    assert process.wait(_SECONDS) == 0
    assert str(temporary) not in _commands()


def test_a_killed_plugin_leaves_no_process_and_the_next_sweeps_its_folder(
    started: Callable[[], tuple[subprocess.Popen[str], Plugin]], sshd: Sshd, temporary: Path
) -> None:
    process, plugin = started()
    plugin.create(REMOTE, {"connection": sshd.connection(), "create": "true"})
    process.kill()
    process.wait()
    _wait_until(lambda: str(temporary) not in _commands())
    (left,) = temporary.iterdir()
    started()
    assert not left.exists()


def test_it_ends_with_its_parent(tmp_path: Path, temporary: Path) -> None:
    # A shell stands for the engine: it tells its child's number, waits for the port, and goes.
    port = tmp_path / "port"
    script = '"$0" >"$1" & echo $!; while [ ! -s "$1" ]; do sleep 0.05; done'
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(temporary),
    }
    with subprocess.Popen(
        ["sh", "-c", script, _PROGRAM, port], stdout=subprocess.PIPE, text=True, env=environment
    ) as shell:
        assert shell.stdout
        process = int(shell.stdout.readline())
    assert int(port.read_text())
    _wait_until(lambda: _gone(process))
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def test_it_ends_when_the_engine_lets_go_of_its_input(
    started: Callable[[], tuple[subprocess.Popen[str], Plugin]],
) -> None:
    process, _ = started()
    assert process.stdin
    process.stdin.close()
    assert process.wait(_SECONDS) == 0


def test_cancel_then_end_while_a_command_runs(
    started: Callable[[], tuple[subprocess.Popen[str], Plugin]], sshd: Sshd
) -> None:
    process, plugin = started()
    command: Properties = {"connection": sshd.connection(), "create": f"sleep 62.{sshd.port}"}
    failures: list[str] = []
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(REMOTE, command))))
    runs.start()
    _wait_until(lambda: f"sleep 62.{sshd.port}" in _commands())
    plugin.cancel()
    runs.join()
    assert failures == ["cancelled"]
    process.send_signal(signal.SIGINT)
    assert process.wait(_SECONDS) == 0
    assert f"sleep 62.{sshd.port}" not in _commands()


def test_it_starts_without_the_whole_sdk() -> None:
    modules = subprocess.run(
        [
            sys.executable,
            "-c",
            "from offline.fast_import import leave_sdk_out; leave_sdk_out(); import offline.command.plugin, sys;"
            "print(*sorted(sys.modules))",
        ],
        cwd=_PROGRAM.parents[2],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "pulumi.runtime.proto.provider_pb2" in modules
    assert not {"pulumi.automation", "pulumi.resource", "yaml", "dill", "pulumi_command"} & set(modules)
