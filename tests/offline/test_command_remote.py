"""SSH connections and remote commands, with an sshd on this machine."""

from __future__ import annotations

import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offline.values import Properties, Value
from tests.offline.loopback_sshd import Sshd, free_port, make_key, running
from tests.offline.plugin import REMOTE, Plugin, hidden

pytestmark = pytest.mark.engine

_DIFFICULT = 'it\'s\n$HOME `x` \\n %s "q" \t end\\'


def _inputs(sshd: Sshd, create: str, **more: Value) -> Properties:
    return {"connection": hidden(sshd.connection()), "create": create, **more}


def _processes(pattern: str) -> str:
    return subprocess.run(["pgrep", "-af", pattern], capture_output=True, text=True, check=False).stdout


def _failing(plugin: Plugin, inputs: Properties) -> tuple[threading.Thread, list[str]]:
    """Start a failing create operation. Return its thread, and a list to which the thread adds the error message."""
    failures: list[str] = []
    thread = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(REMOTE, inputs))))
    thread.start()
    return thread, failures


def test_create_update_and_delete_share_one_login(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    inputs = _inputs(
        sshd,
        "cat; echo err >&2",
        stdin=hidden("made"),
        update="echo updated",
        delete=f"echo deleted > {tmp_path}/log",
    )
    identity, state = plugin.create(REMOTE, inputs)
    assert identity.startswith("it")
    assert state == {**inputs, "stdout": "made", "stderr": "err"}
    state = plugin.update(REMOTE, state, inputs)
    assert state["stdout"] == "updated"
    plugin.delete(REMOTE, state)
    assert (tmp_path / "log").read_text() == "deleted\n"
    assert sshd.logins == 1


def test_input_arrives_unchanged(plugin: Plugin, sshd: Sshd) -> None:
    assert plugin.create(REMOTE, _inputs(sshd, "cat", stdin=hidden(_DIFFICULT)))[1]["stdout"] == _DIFFICULT


def test_no_process_has_a_secret_in_its_arguments(plugin: Plugin, sshd: Sshd) -> None:
    inputs = _inputs(
        sshd,
        "echo on; read -r go; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c zzz-[s]ecret",
        stdin=hidden("go\nzzz-secret"),
    )
    assert "exit status 1" in plugin.failure(lambda: plugin.create(REMOTE, inputs))  # grep found none


def test_large_input_and_output(plugin: Plugin, sshd: Sshd) -> None:
    text = "0123456789abcde\n" * 100_000
    assert plugin.create(REMOTE, _inputs(sshd, "cat", stdin=text, logging="none"))[1]["stdout"] == text[:-1]


def test_parallel_commands_share_one_login(plugin: Plugin, sshd: Sshd) -> None:
    with ThreadPoolExecutor(24) as pool:
        runs = [pool.submit(plugin.create, REMOTE, _inputs(sshd, f"echo {n}; sleep 0.2")) for n in range(24)]
    assert [run.result()[1]["stdout"] for run in runs] == [str(n) for n in range(24)]
    assert sshd.logins == 1


def test_a_failed_command_runs_once(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    command = f"echo x >> {tmp_path}/runs; echo broken >&2; exit 255"
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, command)))
    assert message.startswith("exit status 255: running")
    assert message.endswith("broken")
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_refused_connection_is_tried_again(plugin: Plugin) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": 1.0}
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert message.startswith("root@127.0.0.1 port")
    assert message.endswith("no connection after 2 attempts: Connection refused")
    assert [line for line in plugin.engine.lines if "Dial 1/1 failed: Connection refused" in line]


def test_a_server_that_starts_late_is_reached(plugin: Plugin, new_sshd: Sshd, tmp_path: Path) -> None:
    run: Properties = {
        "connection": new_sshd.connection(dialErrorLimit=-1.0),
        "create": f"echo x >> {tmp_path}/runs; echo here",
    }
    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(plugin.create, REMOTE, run)
        plugin.engine.wait_for("Dial 2/inf failed")
        with running(new_sshd):
            assert created.result()[1]["stdout"] == "here"
    assert (tmp_path / "runs").read_text() == "x\n"


def test_per_dial_timeout_includes_the_handshake(plugin: Plugin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = float(silent.getsockname()[1])
        connection: Properties = {"host": "127.0.0.1", "port": port, "dialErrorLimit": 0.0, "perDialTimeout": 1.0}
        message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "after 1 attempts: timed out (perDialTimeout)" in message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_another_host_key_is_refused(
    plugin: Plugin, sshd: Sshd, server_folder: Path, tmp_path: Path, kind: str
) -> None:
    _, other = make_key(server_folder / "other", kind)
    connection = sshd.connection(hostKey=other, dialErrorLimit=0.0)
    run: Properties = {"connection": connection, "create": f"touch {tmp_path}/made"}
    message = plugin.failure(lambda: plugin.create(REMOTE, run))
    assert "Host key is not trusted" in message
    assert not list(tmp_path.iterdir())
    assert sshd.logins == 0


def test_without_a_host_key_every_server_is_accepted(plugin: Plugin, sshd: Sshd) -> None:
    connection = sshd.connection(hostKey=None)
    assert plugin.create(REMOTE, {"connection": connection, "create": "echo ok"})[1]["stdout"] == "ok"


def test_an_unauthorized_key_is_refused(plugin: Plugin, sshd: Sshd, server_folder: Path) -> None:
    private, _ = make_key(server_folder / "unauthorized")
    connection = sshd.connection(privateKey=private, dialErrorLimit=0.0)
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "Permission denied for user" in message
    assert "PRIVATE KEY" not in message


def test_a_login_without_keys_is_refused(plugin: Plugin, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    connection = sshd.connection(privateKey=None, dialErrorLimit=0.0)
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "Permission denied for user" in message


def test_the_agent_logs_in(plugin: Plugin, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = sshd.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", agent], stdout=subprocess.DEVNULL)
    try:
        _wait_until(agent.exists)
        subprocess.run(["ssh-add", "-q", sshd.folder / "user"], env={"SSH_AUTH_SOCK": str(agent)}, check=True)
        given: Properties = {"connection": sshd.connection(privateKey=None, agentSocketPath=str(agent)), "create": "id"}
        assert "uid=" in str(plugin.create(REMOTE, given)[1]["stdout"])
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        default: Properties = {"connection": sshd.connection(privateKey=None), "create": "echo ok"}
        assert plugin.create(REMOTE, default)[1]["stdout"] == "ok"
    finally:
        process.terminate()
        process.wait(10)


def test_a_command_runs_through_a_proxy(plugin: Plugin, sshd: Sshd) -> None:
    connection = sshd.connection(proxy=sshd.connection())
    run: Properties = {"connection": connection, "create": "echo ok"}
    assert plugin.create(REMOTE, run)[1]["stdout"] == "ok"
    assert sshd.logins == 2


def test_both_host_keys_are_verified_through_a_proxy(plugin: Plugin, sshd: Sshd, server_folder: Path) -> None:
    _, other = make_key(server_folder / "other")
    for connection, logins in (
        (sshd.connection(dialErrorLimit=0.0, proxy=sshd.connection(dialErrorLimit=0.0, hostKey=other)), 0),
        (sshd.connection(dialErrorLimit=0.0, proxy=sshd.connection(dialErrorLimit=0.0), hostKey=other), 1),
    ):
        message = plugin.failure(lambda c=connection: plugin.create(REMOTE, {"connection": c, "create": "true"}))
        assert "Host key is not trusted" in message
        assert sshd.logins == logins


def test_a_port_that_the_proxy_cannot_reach_is_named(plugin: Plugin, sshd: Sshd) -> None:
    connection = sshd.connection(dialErrorLimit=1.0, port=float(free_port()), proxy=sshd.connection(dialErrorLimit=0.0))
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "no connection after 2 attempts" in message
    assert "refused" in message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hostKey", "nonsense", "connection.hostKey: "),
        ("privateKey", "nonsense", "connection.privateKey: "),
        ("proxy", {"host": "127.0.0.1", "hostKey": "nonsense"}, "connection.proxy.hostKey: "),
    ],
)
def test_an_unreadable_key_is_refused(plugin: Plugin, name: str, value: Value, message: str) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": 1.0, name: value}
    found = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert found.startswith(message)
    assert "Fix: give" in found


def test_a_lost_connection_is_made_again(plugin: Plugin, sshd: Sshd) -> None:
    plugin.create(REMOTE, _inputs(sshd, "true"))
    lost = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "kill $PPID; sleep 5")))
    assert "the SSH session failed: " in lost
    assert plugin.create(REMOTE, _inputs(sshd, "echo back"))[1]["stdout"] == "back"
    assert sshd.logins == 2


def test_a_silent_machine_is_given_up(plugin: Plugin, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline.command.ssh._ALIVE_SECONDS", 0.2)
    # A stopped sshd process keeps its TCP connection open but does not respond.
    command = "kill -STOP $PPID; sleep 5; kill -CONT $PPID"
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, command)))
    assert "not responding to keepalive" in message


def test_cancel_ends_the_remote_process(plugin: Plugin, sshd: Sshd) -> None:
    name = f"sleep 61.{sshd.port}"
    runs, failures = _failing(plugin, _inputs(sshd, f"echo on; {name}; echo {shlex.quote(name)} survived"))
    _wait_until(lambda: name in _processes(f"^{name}"))
    began = time.monotonic()
    plugin.cancel()
    runs.join()
    assert time.monotonic() - began < 3
    assert failures == ["cancelled"]
    time.sleep(0.2)
    assert not _processes(f"^{name}")


def test_cancel_ends_all_processes_of_a_connection(plugin: Plugin, sshd: Sshd) -> None:
    name = f"sleep 63.{sshd.port}"
    all_runs = [_failing(plugin, _inputs(sshd, f"{name}; true # {number}")) for number in range(12)]
    _wait_until(lambda: len(_processes(f"^{name}").splitlines()) == 8)
    plugin.cancel()
    for runs, failures in all_runs:
        runs.join()
        assert failures == ["cancelled"]
    _wait_until(lambda: not _processes(f"^{name}"))


def test_cancel_ends_a_dial(plugin: Plugin) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": -1.0}
    runs, failures = _failing(plugin, {"connection": connection, "create": "true"})
    plugin.engine.wait_for("Dial 3/inf failed")
    plugin.cancel()
    runs.join(5)
    assert failures == ["cancelled"]


def test_no_command_starts_after_cancel(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    plugin.cancel()
    assert plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, f"touch {tmp_path}/made"))) == "cancelled"
    assert sshd.logins == 0


def test_a_custom_timeout_ends_the_wait(plugin: Plugin, sshd: Sshd) -> None:
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "sleep 30"), timeout=1))
    assert "longer than 1 s (customTimeouts)" in message


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
