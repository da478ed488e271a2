"""Remote commands with an sshd on this machine, by the plugin in this process and by the plugin as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pulumi.runtime.proto import engine_pb2

from offline.values import Properties, Value
from tests.offline.cloud.stack import wait_until
from tests.offline.loopback_sshd import Sshd, free_port, make_key, running
from tests.offline.plugin import REMOTE, Engine, Plugin, hidden, urn

pytestmark = pytest.mark.engine

_DIFFICULT = 'it\'s\n$HOME `x` \\n %s "q" \t end\\'


def _inputs(sshd: Sshd, create: Value = None, **more: Value) -> Properties:
    return {"connection": hidden(sshd.connection()), "create": create, **more}


def _processes(pattern: str) -> str:
    return subprocess.run(["pgrep", "-af", pattern], capture_output=True, text=True, check=False).stdout


def _failing(plugin: Plugin, inputs: Properties) -> tuple[threading.Thread, list[str]]:
    """Start a failing create operation. Return its thread, and a list to which the thread adds the error message."""
    failures: list[str] = []
    thread = threading.Thread(target=lambda: failures.append(plugin.create_failure(inputs)))
    thread.start()
    return thread, failures


def test_create_update_and_delete_share_one_login(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    more = {"update": "echo updated", "delete": f"echo deleted > {tmp_path}/log"}
    inputs = _inputs(sshd, "cat; echo err >&2", stdin=hidden("made"), **more)
    identity, state = plugin.create(REMOTE, inputs)
    assert identity.startswith("it")
    assert state == {**inputs, "stdout": "made", "stderr": "err"}
    state = plugin.update(REMOTE, state, inputs)
    assert state["stdout"] == "updated"
    plugin.delete(REMOTE, state)
    assert (tmp_path / "log").read_text() == "deleted\n"
    assert sshd.logins == 1


def test_without_update_create_runs_and_without_both_nothing(plugin: Plugin, sshd: Sshd) -> None:
    only_delete = _inputs(sshd, delete="true")
    assert plugin.create(REMOTE, only_delete)[1] == {**only_delete, "stdout": "", "stderr": ""}
    # Outputs are separate, and lose one newline.
    _, state = plugin.create(REMOTE, _inputs(sshd, "printf 'a\\n\\n'; printf 'b' >&2; printf '\\377' >&2"))
    assert (state["stdout"], state["stderr"]) == ("a\n", "b\N{REPLACEMENT CHARACTER}")
    assert plugin.update(REMOTE, state, _inputs(sshd, "echo two"))["stdout"] == "two"
    assert plugin.update(REMOTE, state, only_delete) == {**state, **only_delete}
    plugin.delete(REMOTE, _inputs(sshd, "exit 1", stdout="", stderr=""))


@pytest.mark.parametrize(
    ("command", "data", "output"),
    [
        ("cat", hidden(_DIFFICULT), _DIFFICULT),
        ("cat", "0123456789abcde\n" * 100_000, "0123456789abcde\n" * 100_000),
        ("echo ok", "x" * 4_000_000, "ok\n"),  # a command may ignore its input
    ],
)
def test_input_arrives_unchanged(plugin: Plugin, sshd: Sshd, command: str, data: Value, output: str) -> None:
    assert plugin.stdout(_inputs(sshd, command, stdin=data, logging="none")) == output.removesuffix("\n")


@pytest.mark.parametrize(
    ("logging", "shown"),
    [
        (None, ["out", "err"]),
        ("stdoutAndStderr", ["out", "err"]),
        ("stdout", ["out"]),
        ("stderr", ["err"]),
        ("none", []),
    ],
)
def test_logging_selects_the_shown_output(plugin: Plugin, sshd: Sshd, logging: str | None, shown: list[str]) -> None:
    _, state = plugin.create(REMOTE, _inputs(sshd, "echo out; sleep 0.3; echo err >&2", logging=logging))
    assert (state["stdout"], state["stderr"]) == ("out", "err")
    assert plugin.engine.lines == shown


def test_output_is_shown_while_the_command_runs(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"echo waiting; while [ ! -e {go} ]; do sleep 0.02; done; echo gone"
    runs = threading.Thread(target=plugin.create, args=(REMOTE, _inputs(sshd, command)))
    runs.start()
    plugin.engine.wait_for("waiting")
    assert plugin.engine.lines == ["waiting"]
    go.touch()
    runs.join()
    first, last = plugin.engine.requests
    assert (first.urn, first.ephemeral, first.severity) == (urn(REMOTE), True, engine_pb2.INFO)
    assert (last.message, last.streamId) == ("gone", first.streamId)


def test_a_failure_is_final_and_shows_the_last_lines(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    command = f"seq 100; echo x >> {tmp_path}/runs; sleep 0.3; cat >/dev/null; echo broken >&2; exit 255"
    message = plugin.create_failure(_inputs(sshd, command, stdin=hidden("the password"), logging="none"))
    assert (tmp_path / "runs").read_text() == "x\n"
    assert message.startswith("exit status 255: running `seq 100;")
    assert message.endswith("99\n100\nbroken")
    assert "\n60\n" not in message
    assert "password" not in message


def test_failures_and_arguments_contain_no_secret(plugin: Plugin, sshd: Sshd) -> None:
    message = plugin.create_failure(_inputs(sshd, hidden("exit 3 # password")))
    assert message == "exit status 3: running a secret command (no output)"
    assert "ended by SIGKILL" in plugin.create_failure(_inputs(sshd, "kill -9 $$"))
    command = "echo on; read -r go; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c zzz-[s]ecret"
    inputs = _inputs(sshd, command, stdin=hidden("go\nzzz-secret"))
    assert "exit status 1" in plugin.create_failure(inputs)  # grep found none


def test_parallel_commands_share_one_login(plugin: Plugin, sshd: Sshd) -> None:
    with ThreadPoolExecutor(24) as pool:
        runs = [pool.submit(plugin.stdout, _inputs(sshd, f"echo {n}; sleep 0.2")) for n in range(24)]
    assert [run.result() for run in runs] == [str(n) for n in range(24)]
    assert sshd.logins == 1


def test_a_refused_connection_is_tried_again(plugin: Plugin) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": 1.0}
    message = plugin.create_failure({"connection": connection, "create": "true"})
    assert message.startswith("root@127.0.0.1 port")
    assert message.endswith("no connection after 2 attempts: Connection refused")
    assert [line for line in plugin.engine.lines if "Dial 1/1 failed: Connection refused" in line]


def test_a_server_that_starts_late_is_reached(plugin: Plugin, new_sshd: Sshd, tmp_path: Path) -> None:
    command = f"echo x >> {tmp_path}/runs; echo here"
    run: Properties = {"connection": new_sshd.connection(dialErrorLimit=-1.0), "create": command}
    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(plugin.stdout, run)
        plugin.engine.wait_for("Dial 2/inf failed")
        with running(new_sshd):
            assert created.result() == "here"
    assert (tmp_path / "runs").read_text() == "x\n"


def test_per_dial_timeout_includes_the_handshake(plugin: Plugin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = float(silent.getsockname()[1])
        connection: Properties = {"host": "127.0.0.1", "port": port, "dialErrorLimit": 0.0, "perDialTimeout": 1.0}
        message = plugin.create_failure({"connection": connection, "create": "true"})
    assert "after 1 attempts: timed out (perDialTimeout)" in message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_another_host_key_is_refused(
    plugin: Plugin, sshd: Sshd, server_folder: Path, tmp_path: Path, kind: str
) -> None:
    _, other = make_key(server_folder / "other", kind)
    connection = sshd.connection(hostKey=other, dialErrorLimit=0.0)
    message = plugin.create_failure({"connection": connection, "create": f"touch {tmp_path}/made"})
    assert "Host key is not trusted" in message
    assert not list(tmp_path.iterdir())
    assert sshd.logins == 0
    assert plugin.stdout({"connection": sshd.connection(hostKey=None), "create": "echo ok"}) == "ok"


@pytest.mark.parametrize("has_key", [True, False])
def test_an_unauthorized_login_is_refused(
    plugin: Plugin, sshd: Sshd, server_folder: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    private = make_key(server_folder / "unauthorized")[0] if has_key else None
    connection = sshd.connection(privateKey=private, dialErrorLimit=0.0)
    message = plugin.create_failure({"connection": connection, "create": "true"})
    assert "Permission denied for user" in message
    assert "PRIVATE KEY" not in message


def test_the_agent_logs_in(plugin: Plugin, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = sshd.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", agent], stdout=subprocess.DEVNULL)
    try:
        wait_until(agent.exists)
        subprocess.run(["ssh-add", "-q", sshd.folder / "user"], env={"SSH_AUTH_SOCK": str(agent)}, check=True)
        given = sshd.connection(privateKey=None, agentSocketPath=str(agent))
        assert plugin.stdout({"connection": given, "create": "echo ok"}) == "ok"
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        default = sshd.connection(privateKey=None)
        assert plugin.stdout({"connection": default, "create": "echo ok"}) == "ok"
    finally:
        process.terminate()
        process.wait(10)


def test_a_proxy_is_used_and_both_host_keys_are_verified(plugin: Plugin, sshd: Sshd, server_folder: Path) -> None:
    once: Properties = {"dialErrorLimit": 0.0}
    _, other = make_key(server_folder / "other")
    closed = float(free_port())
    for host_key, proxy_key, port, reason, logins in (
        (sshd.host_key, other, float(sshd.port), "Host key is not trusted", 0),
        (other, sshd.host_key, float(sshd.port), "Host key is not trusted", 1),
        (sshd.host_key, sshd.host_key, closed, "no connection after 1 attempts: ", 2),
        (sshd.host_key, sshd.host_key, float(sshd.port), "", 4),
    ):
        proxy = sshd.connection(**once, hostKey=proxy_key)
        run: Properties = {"connection": sshd.connection(**once, hostKey=host_key, port=port, proxy=proxy)}
        if reason:
            assert reason in plugin.create_failure({**run, "create": "true"})
        else:
            assert plugin.stdout({**run, "create": "echo ok"}) == "ok"
        assert sshd.logins == logins


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hostKey", "nonsense", "connection.hostKey: "),
        ("privateKey", "nonsense", "connection.privateKey: "),
        ("proxy", {"host": "127.0.0.1", "hostKey": "nonsense"}, "connection.proxy.hostKey: "),
    ],
)
def test_an_unreadable_key_is_refused(plugin: Plugin, name: str, value: Value, message: str) -> None:
    found = plugin.create_failure({"connection": {"host": "127.0.0.1", "port": 1.0, name: value}, "create": "true"})
    assert found.startswith(message)
    assert "Fix: give" in found


def test_a_lost_connection_is_made_again(plugin: Plugin, sshd: Sshd) -> None:
    plugin.create(REMOTE, _inputs(sshd, "true"))
    assert "the SSH session failed: " in plugin.create_failure(_inputs(sshd, "kill $PPID; sleep 5"))
    assert plugin.stdout(_inputs(sshd, "echo back")) == "back"
    assert sshd.logins == 2


def test_a_silent_machine_is_given_up(plugin: Plugin, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline.command.ssh._ALIVE_SECONDS", 0.2)
    # A stopped sshd process keeps its TCP connection open but does not respond.
    message = plugin.create_failure(_inputs(sshd, "kill -STOP $PPID; sleep 5; kill -CONT $PPID"))
    assert "not responding to keepalive" in message


def test_cancel_ends_all_processes_of_a_connection(plugin: Plugin, sshd: Sshd) -> None:
    name = f"sleep 63.{sshd.port}"
    all_runs = [_failing(plugin, _inputs(sshd, f"{name}; true # {number}")) for number in range(12)]
    wait_until(lambda: len(_processes(f"^{name}").splitlines()) == 8)
    began = time.monotonic()
    plugin.cancel()
    for runs, failures in all_runs:
        runs.join()
        assert failures == ["context canceled"]
    assert time.monotonic() - began < 3
    wait_until(lambda: not _processes(f"^{name}"))


def test_cancel_ends_a_dial_and_later_commands(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": -1.0}
    runs, failures = _failing(plugin, {"connection": connection, "create": "true"})
    plugin.engine.wait_for("Dial 3/inf failed")
    plugin.cancel()
    runs.join(5)
    assert failures == ["context canceled"]
    assert plugin.create_failure(_inputs(sshd, f"touch {tmp_path}/made")) == "context canceled"
    assert sshd.logins == 0


def test_a_custom_timeout_ends_the_wait(plugin: Plugin, sshd: Sshd) -> None:
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "sleep 30"), timeout=1))
    assert "longer than 1 s (customTimeouts)" in message


Start = Callable[[], tuple[subprocess.Popen[str], Plugin]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Starts the plugin through a symbolic link, as set-up installs it. No temporary files may be left at the end."""
    program = tmp_path / "pulumi-resource-command"
    program.symlink_to(Path(__file__).parents[2] / "offline" / "bin" / "pulumi-resource-command")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    processes = []

    def start() -> tuple[subprocess.Popen[str], Plugin]:
        pipe, path = subprocess.PIPE, f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TMPDIR": str(temporary)}
        process = subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True, cwd=tmp_path, env=environment)
        processes.append(process)
        assert process.stdout
        with process.stdout:
            return process, Plugin(int(process.stdout.readline()), Engine())

    yield start
    for process in processes:
        assert process.stdin
        process.stdin.close()
        process.terminate()
        process.wait(10)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "closed"),
    [
        (signal.SIGINT, 0, "Received disconnect"),
        (signal.SIGTERM, 0, "Received disconnect"),
        (signal.SIGKILL, -signal.SIGKILL, "Connection closed by"),
    ],
)
def test_a_signal_ends_the_plugin_and_its_connections(
    started: Start, sshd: Sshd, number: int, code: int, closed: str
) -> None:
    process, plugin = started()
    plugin.create(REMOTE, _inputs(sshd, "true"))
    process.send_signal(number)
    assert process.wait(10) == code
    wait_until(lambda: closed in sshd.log.read_text())


def test_a_signal_in_another_thread_ends_the_plugin() -> None:
    """The main thread blocks the signal, so that another thread receives it and `poll` is not interrupted."""
    code = (
        "import signal, threading, time; from offline.command.plugin import main\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "main('command', [])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_the_plugin_ends_when_its_input_closes(started: Start) -> None:
    process, _ = started()
    assert process.stdin
    process.stdin.close()
    assert process.wait(10) == 0


@pytest.mark.parametrize("cancel_first", [True, False])
def test_an_end_during_a_command_ends_the_command(started: Start, sshd: Sshd, cancel_first: bool) -> None:
    process, plugin = started()
    name = f"sleep 62.{sshd.port}"
    runs, failures = _failing(plugin, _inputs(sshd, name))
    wait_until(lambda: name in _processes(f"^{name}"))
    if cancel_first:
        plugin.cancel()
        runs.join()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    runs.join()
    assert failures == ["context canceled"]
    assert not _processes(f"^{name}")
