"""Commands on another machine: an sshd of our own stands for it."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offline.values import Properties, Value
from tests.offline.loopback_sshd import Sshd, free_port, make_key, running
from tests.offline.plugin import REMOTE, Plugin, hidden

_AWKWARD = 'it\'s\n$HOME `x` \\n %s "q" \t end\\'


def _inputs(sshd: Sshd, create: str, **more: Value) -> Properties:
    return {"connection": hidden(sshd.connection()), "create": create, **more}


def _processes(word: str) -> str:
    found = subprocess.run(["pgrep", "-af", word], capture_output=True, text=True, check=False)
    return found.stdout


def test_life_over_one_login(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    inputs = _inputs(
        sshd,
        "cat; echo err >&2",
        stdin=hidden("made"),
        update='echo "updated after $PULUMI_COMMAND_STDOUT, $PULUMI_COMMAND_STDERR"',
        delete=f'echo "deleted after $PULUMI_COMMAND_STDOUT" > {tmp_path}/log',
    )
    _, state = plugin.create(REMOTE, inputs)
    assert state == {**inputs, "stdout": "made", "stderr": "err"}
    state = plugin.update(REMOTE, state, inputs)
    assert state["stdout"] == "updated after made, err"
    plugin.delete(REMOTE, state)
    assert (tmp_path / "log").read_text() == "deleted after updated after made, err\n"
    assert sshd.logins == 1


def test_environment_arrives_whole_and_leaves_the_input_alone(plugin: Plugin, sshd: Sshd) -> None:
    environment: Value = {"A": hidden(_AWKWARD), "B": ""}
    inputs = _inputs(sshd, 'printf "%s|" "$A" "${B-unset}"; cat', environment=environment, stdin="one\ntwo")
    assert plugin.create(REMOTE, inputs)[1]["stdout"] == f"{_AWKWARD}||one\ntwo"


def test_environment_names_are_checked(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    inputs = _inputs(sshd, "true", environment={f"A=1; touch {tmp_path}/made; B": "x"})
    assert "Fix: rename it" in plugin.failure(lambda: plugin.create(REMOTE, inputs))
    assert not list(tmp_path.iterdir())


def test_no_secret_stands_in_arguments_while_a_command_runs(plugin: Plugin, sshd: Sshd) -> None:
    inputs = _inputs(
        sshd,
        "echo on; read -r go; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c zzz-[s]ecret",
        environment={"A": hidden("zzz-secret")},
        stdin=hidden("go\nzzz-secret"),
    )
    assert "exit status 1" in plugin.failure(lambda: plugin.create(REMOTE, inputs))  # grep found none


def test_more_data_than_a_pipe_holds_goes_both_ways(plugin: Plugin, sshd: Sshd) -> None:
    text = "0123456789abcde\n" * 50_000
    assert plugin.create(REMOTE, _inputs(sshd, "cat", stdin=text, logging="none"))[1]["stdout"] == text[:-1]


def test_many_commands_at_once_share_the_login(plugin: Plugin, sshd: Sshd) -> None:
    with ThreadPoolExecutor(24) as pool:
        runs = [pool.submit(plugin.create, REMOTE, _inputs(sshd, f"echo {n}; sleep 0.2")) for n in range(24)]
    assert [run.result()[1]["stdout"] for run in runs] == [str(n) for n in range(24)]
    assert sshd.logins == 1


def test_failure_is_not_tried_again(plugin: Plugin, sshd: Sshd, tmp_path: Path) -> None:
    command = f"echo x >> {tmp_path}/runs; echo broken >&2; exit 255"
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, command)))
    assert message.startswith("exit status 255: running")
    assert message.endswith("broken")
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_command_killed_by_a_signal_fails(plugin: Plugin, sshd: Sshd) -> None:
    assert "without an exit status" in plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "kill -9 $$")))


def test_dials_are_counted(plugin: Plugin) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": 1.0}
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "no connection after 2 attempts" in message
    assert "Connection refused" in message
    assert [line for line in plugin.engine.lines if "Dial 1/1 failed" in line]


def test_the_dial_waits_for_a_machine_that_starts(plugin: Plugin, new_sshd: Sshd, tmp_path: Path) -> None:
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


def test_a_wrong_host_key_is_refused(plugin: Plugin, sshd: Sshd, server_folder: Path, tmp_path: Path) -> None:
    _, other = make_key(server_folder / "impostor")
    connection = sshd.connection(hostKey=other, dialErrorLimit=0.0)
    run: Properties = {"connection": connection, "create": f"touch {tmp_path}/made"}
    assert "Host key verification failed" in plugin.failure(lambda: plugin.create(REMOTE, run))
    assert not list(tmp_path.iterdir())


def test_without_a_host_key_any_is_taken(plugin: Plugin, sshd: Sshd) -> None:
    connection = sshd.connection(hostKey=None)
    assert plugin.create(REMOTE, {"connection": connection, "create": "echo ok"})[1]["stdout"] == "ok"


def test_a_wrong_key_is_told_in_ssh_words(plugin: Plugin, sshd: Sshd, server_folder: Path) -> None:
    private, _ = make_key(server_folder / "stranger")
    connection = sshd.connection(privateKey=private, dialErrorLimit=0.0)
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert "Permission denied (publickey" in message
    assert "PRIVATE KEY" not in message


def test_through_a_proxy(plugin: Plugin, sshd: Sshd) -> None:
    connection = sshd.connection(proxy=sshd.connection())
    run: Properties = {"connection": connection, "create": "echo ok"}
    assert plugin.create(REMOTE, run)[1]["stdout"] == "ok"
    assert sshd.logins == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("host", 'h" \nProxyCommand "touch /tmp/x', "connection.host: may not hold"),
        ("user", "a b", "connection.user: may not hold"),
        ("hostKey", "nonsense", "connection.hostKey: must be a public key line"),
        ("password", "x", "connection.password: the stand-in logs in with keys only"),
    ],
)
def test_a_connection_that_no_configuration_can_say_is_refused(
    plugin: Plugin, name: str, value: str, words: str
) -> None:
    connection: Properties = {"host": "127.0.0.1", "port": 1.0, "dialErrorLimit": 0.0, name: value}
    message = plugin.failure(lambda: plugin.create(REMOTE, {"connection": connection, "create": "true"}))
    assert message.startswith(words)


def test_a_lost_connection_is_dialled_again_for_the_next_command(plugin: Plugin, sshd: Sshd) -> None:
    plugin.create(REMOTE, _inputs(sshd, "true"))
    lost = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "kill $PPID; sleep 5")))
    assert "the connection was lost" in lost
    assert plugin.create(REMOTE, _inputs(sshd, "echo back"))[1]["stdout"] == "back"
    assert sshd.logins == 2


def test_cancel_ends_the_remote_process(plugin: Plugin, sshd: Sshd) -> None:
    failures: list[str] = []
    name = f"sleep 61.{sshd.port}"
    command = _inputs(sshd, f"echo on; {name}; echo {shlex.quote(name)} survived")
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(REMOTE, command))))
    runs.start()
    plugin.engine.wait_for("on")
    # The shell speaks before it starts the process.
    deadline = time.monotonic() + 10
    while name not in _processes(f"^{name}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    plugin.cancel()
    runs.join()
    assert time.monotonic() - began < 3
    assert failures == ["cancelled"]
    time.sleep(0.2)
    assert not _processes(f"^{name}")


def test_cancel_ends_a_dial(plugin: Plugin) -> None:
    failures: list[str] = []
    connection: Properties = {"host": "127.0.0.1", "port": float(free_port()), "dialErrorLimit": -1.0}
    run: Properties = {"connection": connection, "create": "true"}
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(REMOTE, run))))
    runs.start()
    plugin.engine.wait_for("Dial 3/inf failed")
    plugin.cancel()
    runs.join(5)
    assert failures == ["cancelled"]


def test_a_custom_timeout_ends_the_wait(plugin: Plugin, sshd: Sshd) -> None:
    message = plugin.failure(lambda: plugin.create(REMOTE, _inputs(sshd, "sleep 30"), timeout=0.5))
    assert "longer than 0.5 s" in message
