"""The command plugin without a server: property values, checks, diffs, previews, and recorded commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from offline.values import ASSET, MARK, UNKNOWN, Change, Properties, Value, changes, reveal, secret
from tests.offline.plugin import REMOTE, Plugin, hidden, serving, urn

HOST: Value = {"host": "192.0.2.1"}
ENCRYPTED: Properties = {"connection": hidden({"host": "h", "proxy": {"host": "p", "privateKeyPassword": "x"}})}


def test_the_plugin_reports_the_sdk_version(plugin: Plugin) -> None:
    assert plugin.stub.GetPluginInfo(empty_pb2.Empty()).version == "1.2.1"


def test_check_makes_the_connection_a_secret(plugin: Plugin) -> None:
    inputs: Properties = {"connection": {"host": "h", "privateKey": "key", "proxy": {"host": "p"}}, "create": "true"}
    assert plugin.check(REMOTE, inputs) == ({**inputs, "connection": hidden(inputs["connection"])}, {})


def test_a_second_check_changes_nothing(plugin: Plugin) -> None:
    once, _ = plugin.check(REMOTE, {"connection": hidden({"host": "h", "privateKey": hidden("k")}), "create": "true"})
    assert plugin.check(REMOTE, once) == (once, {})


def test_check_accepts_unknown_values(plugin: Plugin) -> None:
    inputs: Properties = {"connection": hidden(UNKNOWN), "create": UNKNOWN, "triggers": [UNKNOWN]}
    assert plugin.check(REMOTE, inputs) == (inputs, {})
    _, failures = plugin.check(REMOTE, {"connection": {"host": UNKNOWN, "port": UNKNOWN}, "logging": UNKNOWN})
    assert not failures


@pytest.mark.parametrize(
    ("inputs", "path", "reason"),
    [
        ({"create": "true"}, "connection", "is required"),
        ({"connection": {}}, "connection.host", "is required"),
        ({"connection": HOST, "logging": "loud"}, "logging", "is not one of stdout, stderr, stdoutAndStderr, none"),
        ({"connection": HOST, "environment": {"A": "1"}}, "environment", "install the official plugin"),
        ({"connection": {"host": "h", "dialErrorLimit": 1.5}}, "connection.dialErrorLimit", "whole number"),
        ({"connection": {"host": "h", "password": "x"}}, "connection.password", "Fix: set an unencrypted privateKey"),
        ({"connection": {"host": "h", "proxy": {}}}, "connection.proxy.host", "is required"),
        (ENCRYPTED, "connection.proxy.privateKeyPassword", "install the official plugin"),
    ],
)
def test_check_refuses_wrong_inputs(plugin: Plugin, inputs: Properties, path: str, reason: str) -> None:
    _, failures = plugin.check(REMOTE, inputs)
    assert list(failures) == [path]
    assert reason in failures[path]


@pytest.mark.parametrize("token", ["command:local:Command", "command:remote:CopyToRemote"])
def test_other_types_and_functions_are_refused(plugin: Plugin, token: str) -> None:
    checked = plugin.failure(lambda: plugin.stub.Check(provider_pb2.CheckRequest(urn=urn(token))))
    deleted = plugin.failure(lambda: plugin.delete(token, {"delete": "true"}))
    assert checked == deleted
    assert token in checked
    assert f"only {REMOTE}. Fix: install the official plugin" in checked
    request = provider_pb2.InvokeRequest(tok="command:local:run")
    assert "command:local:run" in plugin.failure(lambda: plugin.stub.Invoke(request))


def test_only_changed_triggers_replace_the_resource(plugin: Plugin) -> None:
    old: Properties = {"create": "a", "triggers": ["1", "2"]}
    update, replace = provider_pb2.PropertyDiff.UPDATE, provider_pb2.PropertyDiff.UPDATE_REPLACE
    both = plugin.diff(REMOTE, old, {"create": "b", "triggers": ["1", "3"]})
    assert list(both.replaces) == ["triggers[1]"]
    assert {path: found.kind for path, found in both.detailedDiff.items()} == {"create": update, "triggers[1]": replace}
    only = plugin.diff(REMOTE, old, {**old, "create": "b"})
    assert (only.changes, list(only.replaces)) == (provider_pb2.DiffResponse.DIFF_SOME, [])
    assert plugin.diff(REMOTE, old, old).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_secrets_inside_a_secret_are_no_difference(plugin: Plugin) -> None:
    old: Properties = {"connection": hidden({"host": "h", "privateKey": hidden("k")})}
    new: Properties = {"connection": hidden({"host": "h", "privateKey": "k"})}
    assert plugin.diff(REMOTE, old, new).changes == provider_pb2.DiffResponse.DIFF_NONE
    new = {"connection": hidden({"host": "h", "privateKey": "other"})}
    assert plugin.diff(REMOTE, old, new).changes == provider_pb2.DiffResponse.DIFF_SOME


def test_a_preview_runs_nothing(plugin: Plugin) -> None:
    # If the command ran, it would fail, because no server is running.
    inputs: Properties = {"connection": hidden(HOST), "create": "true", "stdin": hidden("x")}
    _, outputs = plugin.create(REMOTE, inputs, preview=True)
    assert outputs == {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}
    changed = plugin.update(REMOTE, {**inputs, "stdout": "old", "stderr": ""}, inputs, preview=True)
    assert changed["stdout"] == UNKNOWN


def test_a_refresh_keeps_the_state(plugin: Plugin) -> None:
    request = provider_pb2.ReadRequest(id="it1", urn=urn(REMOTE))
    request.properties.update({"stdout": "words", "create": "x"})
    request.inputs.update({"create": "x"})
    answer = plugin.stub.Read(request)
    assert (answer.id, answer.properties, answer.inputs) == ("it1", request.properties, request.inputs)


CONNECTION: dict[str, Any] = {"host": "203.0.113.7", "user": "ops", "privateKey": "the private key"}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    monkeypatch.setenv("TRAINYARD_OFFLINE", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_OFFLINE_COMMANDS", "record")
    with serving() as found:
        yield found


def test_commands_are_recorded_and_do_not_run(recorder: Plugin, tmp_path: Path) -> None:
    more = {"create": f"sudo trainyard-gate; touch {tmp_path}/made", "stdin": hidden("munge"), "delete": hidden("bye")}
    _, outputs = recorder.create(REMOTE, {"connection": hidden(CONNECTION), **more})
    assert reveal(outputs["stdout"]) == "offline: no machine was checked; nothing is ready"
    recorder.delete(REMOTE, outputs)
    text = (tmp_path / "stack" / "commands.jsonl").read_text()
    created, deleted = map(json.loads, text.splitlines())
    found = [created[key] for key in ("host", "user", "command", "stdin_bytes")]
    assert found == ["203.0.113.7", "ops", more["create"], 5]
    assert deleted["command"] == "(secret)"
    assert not [word for word in ("munge", "bye", "private key") if word in text]
    assert not (tmp_path / "made").exists()


FILE: Properties = {MARK: ASSET, "hash": "1", "path": "x"}


def test_secrets_are_marked_once_and_revealed_at_any_depth() -> None:
    assert secret(secret("a")) == hidden("a")
    assert reveal(hidden({"a": [hidden("b")], "c": hidden(hidden(1.0))})) == {"a": ["b"], "c": 1.0}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": "x"}, {"a": "x"}, {}),
        ({"a": "x"}, {"a": "y"}, {"a": "UPDATE"}),
        ({}, {"a": "y"}, {"a": "ADD"}),
        ({"a": "x"}, {}, {"a": "DELETE"}),
        ({"a": ["x"]}, {"a": ["x", "y"]}, {"a[1]": "ADD"}),
        ({"a": {"b": "x", "c d": "x"}}, {"a": {"b": "y"}}, {"a.b": "UPDATE", 'a["c d"]': "DELETE"}),
        ({"a": hidden({"b": "x"})}, {"a": hidden({"b": "y"})}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": hidden("x")}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": UNKNOWN}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": "x", "__defaults": [], "version": "1"}, {}),
        ({"a": FILE | {"path": "./x"}}, {"a": FILE | {"path": "/moved/x"}}, {}),
        ({"a": FILE}, {"a": FILE | {"hash": "2"}}, {"a": "UPDATE"}),
    ],
)
def test_changes(old: Properties, new: Properties, expected: dict[str, Change]) -> None:
    assert changes(old, new) == expected
