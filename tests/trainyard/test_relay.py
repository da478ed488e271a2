"""The relay as a process, with fake cloud CLIs that forward to a real server."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.offline.cloud.stack import wait_until
from tests.offline.loopback_sshd import free_port
from tests.trainyard.tunnel_programs import BASTION, IAP, TunnelPrograms
from trainyard import relay

pytestmark = pytest.mark.engine

RELAY = relay.__file__
BANNER = b"SSH-2.0-test\r\n"
COMMANDS = pytest.mark.parametrize("command", [BASTION, IAP], ids=["bastion", "iap"])


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that sends a banner, as SSH does, and then echoes its input."""

    def serve(client: socket.socket) -> None:
        # An exception in this thread would fail a later test.
        with client, suppress(ConnectionError):
            client.sendall(BANNER)
            while data := client.recv(65536):
                client.sendall(data)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def programs(tmp_path: Path, server: int, monkeypatch: pytest.MonkeyPatch) -> TunnelPrograms:
    made = TunnelPrograms(tmp_path / "bin")
    made.install(server)
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    return made


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(programs: TunnelPrograms) -> Iterator[Start]:
    """Start the relay. The relay and its child processes are terminated after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(mode: str, place: object, command: Sequence[str]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", RELAY, mode, str(place), *command]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        with process:
            pass
    assert programs.running == []


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout
    return process.stdout.readline().decode().strip()


def echo(port: int, data: bytes) -> bytes:
    """Send data through a port, and return the data received after the banner."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        found = b""
        while not found.endswith(b"\n"):
            found += connection.recv(100)
        connection.sendall(data)
        back = b""
        while len(back) < len(data):
            back += connection.recv(65536)
        assert found == BANNER
        return back


@COMMANDS
def test_stdio_forwards_in_both_directions(
    start: Start, programs: TunnelPrograms, tmp_path: Path, command: list[str]
) -> None:
    programs.behave("late=0.5")
    process = start("stdio", tmp_path / "log", command)
    assert process.stdin
    assert line(process) + "\r\n" == BANNER.decode()
    process.stdin.write(b"x" * 200_000 + b"\n")
    process.stdin.flush()
    assert line(process) == "x" * 200_000
    process.stdin.close()
    assert process.wait(15) is not None
    assert programs.running == []
    assert (len(programs.calls), programs.interrupted) == (1, 1)
    assert (tmp_path / "log").read_text() == ""


def test_a_signal_at_the_end_of_stdin_leaves_no_process(start: Start, programs: TunnelPrograms, tmp_path: Path) -> None:
    # OpenSSH closes the pipes and sends SIGHUP. With the delay, the signal arrives while the relay shuts down. The
    # first two signals are sent without closing stdin.
    for delay in range(12):
        process = start("stdio", tmp_path / "log", BASTION)
        assert process.stdin
        line(process)
        if delay > 1:
            process.stdin.close()
        time.sleep(delay / 5000)
        process.send_signal(signal.SIGTERM if delay % 2 else signal.SIGHUP)
        process.wait(15)
        assert programs.running == [], delay


def test_ctrl_c_does_not_end_a_shared_connection(start: Start, tmp_path: Path) -> None:
    process = start("stdio", tmp_path / "log", BASTION)
    assert process.stdin
    line(process)
    process.send_signal(signal.SIGINT)
    process.stdin.write(b"still here\n")
    process.stdin.flush()
    assert line(process) == "still here"


def test_ssh_that_ends_early_stops_the_attempts(start: Start, programs: TunnelPrograms, tmp_path: Path) -> None:
    programs.behave("unreachable")
    process = start("stdio", tmp_path / "log", IAP)
    wait_until(lambda: len(programs.calls) > 1)
    assert process.stdin
    process.stdin.close()
    process.wait(15)


@pytest.mark.parametrize("mode", ["stdio", "serve"])
def test_a_missing_login_is_reported_at_once(start: Start, programs: TunnelPrograms, tmp_path: Path, mode: str) -> None:
    programs.behave("logged-out")
    process = start(mode, tmp_path / "log" if mode == "stdio" else free_port(), BASTION)
    said = line(process)
    assert process.wait(15) == 1
    said = said or (tmp_path / "log").read_text()
    assert said.endswith("az ended with exit code 1: ERROR: Please run 'az login' to setup account.")
    assert len(programs.calls) == 1


def test_a_missing_program_is_named(start: Start, tmp_path: Path) -> None:
    process = start("stdio", tmp_path / "log", ["no-such-program", "{port}"])
    assert process.wait(15) == 1
    assert (tmp_path / "log").read_text() == (
        "cannot run no-such-program (No such file or directory); install it, or correct PATH"
    )


def test_serve_is_ready_once_the_server_answers(start: Start, programs: TunnelPrograms) -> None:
    programs.behave("unreachable")
    port = free_port()
    process = start("serve", port, IAP)
    wait_until(lambda: bool(programs.calls))
    programs.behave("late=0.5")
    assert line(process) == "ready"
    assert echo(port, b"one" * 50_000) == b"one" * 50_000


def test_connections_are_independent(start: Start, programs: TunnelPrograms) -> None:
    port = free_port()
    assert line(start("serve", port, BASTION)) == "ready"
    with socket.create_connection(("127.0.0.1", port), timeout=15) as first:
        assert first.recv(100) == BANNER
        assert echo(port, b"two") == b"two"
    programs.behave("dies=0.5")
    with socket.create_connection(("127.0.0.1", port), timeout=15) as first:
        assert first.recv(100) == BANNER
        assert first.recv(100) == b""
    programs.behave("")
    assert echo(port, b"again") == b"again"


def test_a_taken_port_is_reported(start: Start, server: int) -> None:
    process = start("serve", server, BASTION)
    assert line(process).startswith(f"error cannot listen on port {server} on this machine (Address already in use")


def test_a_killed_owner_leaves_no_process(programs: TunnelPrograms) -> None:
    # The owner process holds the other end of the relay's standard input, as a Pulumi program does.
    port = free_port()
    code = (
        "import subprocess, sys, time\n"
        "relay = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(relay.pid, flush=True)\ntime.sleep(60)"
    )
    argv = [sys.executable, "-c", code, sys.executable, "-I", RELAY, "serve", str(port), *BASTION]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        pid = int(line(owner))
        assert line(owner) == "ready"
        with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
            assert connection.recv(100) == BANNER
            owner.kill()
            owner.wait(15)
            wait_until(lambda: not programs.running)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
