"""Commands on this machine: the life of a Command, its output and its end."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.proto import engine_pb2, provider_pb2

from offline.values import Properties, from_struct, to_struct
from tests.offline.plugin import LOCAL, Plugin, hidden, urn


def test_create_update_delete(plugin: Plugin, tmp_path: Path) -> None:
    log = tmp_path / "log"
    inputs: Properties = {
        "create": "echo made",
        "update": 'echo "updated after $PULUMI_COMMAND_STDOUT"',
        "delete": f'echo "deleted after $PULUMI_COMMAND_STDOUT" > {log}',
    }
    made, state = plugin.create(LOCAL, inputs)
    assert made.startswith("it")
    assert state == {**inputs, "stdout": "made", "stderr": ""}
    state = plugin.update(LOCAL, state, inputs)
    assert state["stdout"] == "updated after made"
    plugin.delete(LOCAL, state)
    assert log.read_text() == "deleted after updated after made\n"


def test_update_creates_again_without_an_update_command(plugin: Plugin) -> None:
    _, state = plugin.create(LOCAL, {"create": "echo one"})
    assert plugin.update(LOCAL, state, {"create": "echo two"})["stdout"] == "two"


def test_update_with_nothing_to_run_keeps_the_output(plugin: Plugin) -> None:
    _, state = plugin.create(LOCAL, {"create": "echo one"})
    assert plugin.update(LOCAL, state, {"delete": "true"}) == {"delete": "true", "stdout": "one", "stderr": ""}


def test_nothing_to_create_leaves_empty_output(plugin: Plugin) -> None:
    assert plugin.create(LOCAL, {"delete": "true"})[1] == {"delete": "true", "stdout": "", "stderr": ""}


def test_delete_without_a_command_does_nothing(plugin: Plugin) -> None:
    plugin.delete(LOCAL, {"create": "exit 1", "stdout": "", "stderr": ""})


def test_output_is_kept_apart_and_loses_one_newline(plugin: Plugin) -> None:
    _, state = plugin.create(LOCAL, {"create": "printf 'a\\n\\n'; printf 'b' >&2; printf '\\377' >&2"})
    assert (state["stdout"], state["stderr"]) == ("a\n", "b\N{REPLACEMENT CHARACTER}")


def test_input_environment_folder_and_interpreter(plugin: Plugin, tmp_path: Path) -> None:
    inputs: Properties = {
        "create": "cat - /dev/fd/3 3<<< $A; pwd",
        "interpreter": ["bash", "-c"],
        "stdin": hidden("in\n"),
        "environment": hidden({"A": hidden("b c")}),
        "dir": str(tmp_path),
    }
    _, state = plugin.create(LOCAL, inputs)
    assert state["stdout"] == f"in\nb c\n{tmp_path}"
    assert state["stdin"] == hidden("in\n")
    assert state["environment"] == inputs["environment"]


def test_more_data_than_a_pipe_holds_goes_both_ways(plugin: Plugin) -> None:
    text = "0123456789abcde\n" * 50_000
    _, state = plugin.create(LOCAL, {"create": "cat", "stdin": text, "logging": "none"})
    assert state["stdout"] == text[:-1]


def test_a_command_need_not_read_its_input(plugin: Plugin) -> None:
    assert plugin.create(LOCAL, {"create": "echo ok", "stdin": "x" * 1_000_000})[1]["stdout"] == "ok"


def test_previous_output_can_be_kept_out(plugin: Plugin) -> None:
    inputs: Properties = {"create": 'echo "${PULUMI_COMMAND_STDOUT-none}"', "addPreviousOutputInEnv": False}
    assert plugin.update(LOCAL, {**inputs, "stdout": "old", "stderr": ""}, inputs)["stdout"] == "none"


def test_previous_output_too_long_for_a_variable_is_left_out_with_a_warning(plugin: Plugin) -> None:
    inputs: Properties = {"create": 'echo "${PULUMI_COMMAND_STDOUT-none}"'}
    assert plugin.update(LOCAL, {**inputs, "stdout": "x" * 200_000, "stderr": ""}, inputs)["stdout"] == "none"
    (warning,) = [line for line in plugin.engine.requests if line.severity == engine_pb2.WARNING]
    assert "PULUMI_COMMAND_STDOUT" in warning.message


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
def test_logging_chooses_what_the_engine_shows(plugin: Plugin, logging: str | None, shown: list[str]) -> None:
    inputs: Properties = {"create": "echo out; sleep 0.1; echo err >&2", "logging": logging}
    _, state = plugin.create(LOCAL, inputs)
    assert (state["stdout"], state["stderr"]) == ("out", "err")
    assert plugin.engine.lines == shown


def test_lines_show_beside_the_resource_while_the_command_runs(plugin: Plugin, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"echo waiting; while [ ! -e {go} ]; do sleep 0.02; done; echo gone"
    runs = threading.Thread(target=plugin.create, args=(LOCAL, {"create": command}))
    runs.start()
    plugin.engine.wait_for("waiting")
    assert plugin.engine.lines == ["waiting"]
    go.touch()
    runs.join()
    first, last = plugin.engine.requests
    assert (first.urn, first.ephemeral, first.severity) == (urn(LOCAL), True, engine_pb2.INFO)
    assert (last.message, last.streamId) == ("gone", first.streamId)


def test_failure_tells_status_and_last_lines_but_no_input(plugin: Plugin) -> None:
    inputs: Properties = {
        "create": "seq 100; cat >/dev/null; echo broken >&2; exit 3",
        "stdin": hidden("the password"),
        "logging": "none",
    }
    message = plugin.failure(lambda: plugin.create(LOCAL, inputs))
    assert message.startswith("exit status 3: running `seq 100;")
    assert message.endswith("99\n100\nbroken")
    assert "\n60\n" not in message
    assert "password" not in message


def test_failure_does_not_show_a_secret_command(plugin: Plugin) -> None:
    message = plugin.failure(lambda: plugin.create(LOCAL, {"create": hidden("exit 3 # password")}))
    assert message == "exit status 3: running a secret command (it printed nothing)"


def test_failure_to_start_is_told(plugin: Plugin) -> None:
    message = plugin.failure(lambda: plugin.create(LOCAL, {"create": "true", "dir": "/no/such/folder"}))
    assert "could not start" in message
    assert "/no/such/folder" in message


def test_a_signal_is_named(plugin: Plugin) -> None:
    assert "ended by SIGKILL" in plugin.failure(lambda: plugin.create(LOCAL, {"create": "kill -9 $$"}))


def test_a_custom_timeout_ends_the_command(plugin: Plugin, tmp_path: Path) -> None:
    late = tmp_path / "late"
    command = f"(sleep 0.6; touch {late}) & sleep 60"
    message = plugin.failure(lambda: plugin.create(LOCAL, {"create": command}, timeout=0.2))
    assert "longer than 0.2 s" in message
    time.sleep(0.6)
    assert not late.exists()


def test_cancel_ends_the_command_and_refuses_others(plugin: Plugin) -> None:
    failures: list[str] = []
    command: Properties = {"create": "echo on; sleep 60"}
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(LOCAL, command))))
    runs.start()
    plugin.engine.wait_for("on")
    began = time.monotonic()
    plugin.cancel()
    runs.join()
    assert time.monotonic() - began < 2
    assert failures == ["cancelled"]
    assert plugin.failure(lambda: plugin.create(LOCAL, {"create": "true"})) == "cancelled"


def test_cancel_ends_a_command_that_ignores_the_polite_end(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline.command.local._GRACE_SECONDS", 0.3)
    failures: list[str] = []
    command: Properties = {"create": "trap '' TERM; echo on; while :; do sleep 0.1; done"}
    runs = threading.Thread(target=lambda: failures.append(plugin.failure(lambda: plugin.create(LOCAL, command))))
    runs.start()
    plugin.engine.wait_for("on")
    plugin.cancel()
    runs.join(10)
    assert failures == ["cancelled"]


def test_the_function_run(plugin: Plugin) -> None:
    def invoke(arguments: Properties) -> Any:
        request = provider_pb2.InvokeRequest(tok="command:local:run", args=to_struct(arguments))
        return from_struct(getattr(plugin.stub.Invoke(request), "return"))

    assert invoke({"command": "cat", "stdin": "x"}) == {"command": "cat", "stdin": "x", "stdout": "x", "stderr": ""}
    assert "exit status 2" in plugin.failure(lambda: invoke({"command": "exit 2"}))
    assert "command: must be given" in plugin.failure(lambda: invoke({}))
