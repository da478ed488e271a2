"""Create, update and delete of remote commands, and their output."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pulumi.runtime.proto import engine_pb2

from offline.values import Properties, Value
from tests.offline.loopback_sshd import Sshd
from tests.offline.plugin import REMOTE, Plugin, hidden, urn

pytestmark = pytest.mark.engine

Inputs = Callable[..., Properties]


@pytest.fixture
def inputs(sshd: Sshd) -> Inputs:
    """Returns inputs with a connection to the server."""

    def with_connection(**more: Value) -> Properties:
        return {"connection": hidden(sshd.connection()), **more}

    return with_connection


def test_update_runs_create_if_there_is_no_update(plugin: Plugin, inputs: Inputs) -> None:
    _, state = plugin.create(REMOTE, inputs(create="echo one"))
    assert plugin.update(REMOTE, state, inputs(create="echo two"))["stdout"] == "two"


def test_update_without_commands_keeps_the_output(plugin: Plugin, inputs: Inputs) -> None:
    _, state = plugin.create(REMOTE, inputs(create="echo one"))
    only_delete = inputs(delete="true")
    assert plugin.update(REMOTE, state, only_delete) == {**only_delete, "stdout": "one", "stderr": ""}


def test_create_without_a_command_has_empty_output(plugin: Plugin, inputs: Inputs) -> None:
    only_delete = inputs(delete="true")
    assert plugin.create(REMOTE, only_delete)[1] == {**only_delete, "stdout": "", "stderr": ""}


def test_delete_without_a_command_does_nothing(plugin: Plugin, inputs: Inputs) -> None:
    plugin.delete(REMOTE, inputs(create="exit 1", stdout="", stderr=""))


def test_outputs_are_separate_and_lose_one_newline(plugin: Plugin, inputs: Inputs) -> None:
    _, state = plugin.create(REMOTE, inputs(create="printf 'a\\n\\n'; printf 'b' >&2; printf '\\377' >&2"))
    assert (state["stdout"], state["stderr"]) == ("a\n", "b\N{REPLACEMENT CHARACTER}")


def test_a_command_need_not_read_its_input(plugin: Plugin, inputs: Inputs) -> None:
    assert plugin.create(REMOTE, inputs(create="echo ok", stdin="x" * 4_000_000))[1]["stdout"] == "ok"


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
def test_logging_selects_the_shown_output(
    plugin: Plugin, inputs: Inputs, logging: str | None, shown: list[str]
) -> None:
    _, state = plugin.create(REMOTE, inputs(create="echo out; sleep 0.3; echo err >&2", logging=logging))
    assert (state["stdout"], state["stderr"]) == ("out", "err")
    assert plugin.engine.lines == shown


def test_output_is_shown_while_the_command_runs(plugin: Plugin, inputs: Inputs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"echo waiting; while [ ! -e {go} ]; do sleep 0.02; done; echo gone"
    runs = threading.Thread(target=plugin.create, args=(REMOTE, inputs(create=command)))
    runs.start()
    plugin.engine.wait_for("waiting")
    assert plugin.engine.lines == ["waiting"]
    go.touch()
    runs.join()
    first, last = plugin.engine.requests
    assert (first.urn, first.ephemeral, first.severity) == (urn(REMOTE), True, engine_pb2.INFO)
    assert (last.message, last.streamId) == ("gone", first.streamId)


def test_a_failure_shows_the_last_lines_and_no_input(plugin: Plugin, inputs: Inputs) -> None:
    given = inputs(
        create="seq 100; sleep 0.3; cat >/dev/null; echo broken >&2; exit 3",
        stdin=hidden("the password"),
        logging="none",
    )
    message = plugin.failure(lambda: plugin.create(REMOTE, given))
    assert message.startswith("exit status 3: running `seq 100;")
    assert message.endswith("99\n100\nbroken")
    assert "\n60\n" not in message
    assert "password" not in message


def test_a_failure_hides_a_secret_command(plugin: Plugin, inputs: Inputs) -> None:
    message = plugin.failure(lambda: plugin.create(REMOTE, inputs(create=hidden("exit 3 # password"))))
    assert message == "exit status 3: running a secret command (no output)"


def test_the_signal_that_killed_a_command_is_named(plugin: Plugin, inputs: Inputs) -> None:
    assert "ended by SIGKILL" in plugin.failure(lambda: plugin.create(REMOTE, inputs(create="kill -9 $$")))
