"""What the plugin says about itself and about inputs, before anything runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from offline.values import ASSET, MARK, UNKNOWN, Properties, Value, is_secret, reveal
from tests.offline.plugin import COPY, LOCAL, REMOTE, Plugin, hidden, urn

HERE: Value = {"host": "192.0.2.1"}


def test_the_engine_finds_the_sdks_version_and_previews(plugin: Plugin) -> None:
    assert plugin.stub.GetPluginInfo(empty_pb2.Empty()).version == "1.2.1"
    answer = plugin.stub.Configure(provider_pb2.ConfigureRequest())
    shake = plugin.stub.Handshake(provider_pb2.ProviderHandshakeRequest())
    assert answer.supportsPreview
    assert answer.acceptSecrets == shake.accept_secrets is True
    assert answer.acceptOutputs == shake.accept_outputs is False


def test_schema_names_the_types(plugin: Plugin) -> None:
    schema = json.loads(plugin.stub.GetSchema(provider_pb2.GetSchemaRequest()).schema)
    assert (schema["name"], schema["version"]) == ("command", "1.2.1")
    assert set(schema["resources"]) == {REMOTE, LOCAL, COPY}
    assert {"stdin", "connection"} <= set(schema["resources"][REMOTE]["inputProperties"])


def test_check_fills_the_official_defaults_and_marks_secrets(plugin: Plugin) -> None:
    key = "not a key"
    inputs: Properties = {"connection": {"host": "h", "privateKey": key, "proxy": {"host": "p"}}, "create": "true"}
    checked, failures = plugin.check(REMOTE, inputs)
    assert not failures
    assert is_secret(checked["connection"])
    found: Any = checked["connection"]
    assert is_secret(found["value"]["privateKey"])
    defaults = {"user": "root", "port": 22, "dialErrorLimit": 10, "perDialTimeout": 15}
    assert reveal(found) == {"host": "h", "privateKey": key, "proxy": {"host": "p", **defaults}, **defaults}


def test_checking_again_changes_nothing(plugin: Plugin) -> None:
    once, _ = plugin.check(REMOTE, {"connection": hidden({"host": "h", "privateKey": hidden("k")}), "create": "true"})
    assert plugin.check(REMOTE, once) == (once, {})


def test_check_takes_what_is_not_known_yet(plugin: Plugin) -> None:
    whole, failures = plugin.check(REMOTE, {"connection": hidden(UNKNOWN), "create": UNKNOWN, "triggers": [UNKNOWN]})
    assert not failures
    assert whole == {"connection": hidden(UNKNOWN), "create": UNKNOWN, "triggers": [UNKNOWN]}
    _, failures = plugin.check(REMOTE, {"connection": {"host": UNKNOWN, "port": UNKNOWN}, "logging": UNKNOWN})
    assert not failures


@pytest.mark.parametrize(
    ("token", "inputs", "path", "reason"),
    [
        (REMOTE, {"create": "true"}, "connection", "must be given"),
        (REMOTE, {"connection": {}}, "connection.host", "must be given"),
        (REMOTE, {"connection": HERE, "creat": "x"}, "creat", "no such property"),
        (REMOTE, {"connection": HERE, "create": 1.0}, "create", "type string"),
        (REMOTE, {"connection": HERE, "triggers": "x"}, "triggers", "type list"),
        (REMOTE, {"connection": HERE, "logging": "loud"}, "logging", "must be one of stdout, stderr"),
        (REMOTE, {"connection": HERE, "environment": {"A": 1.0}}, "environment", "map of strings"),
        (REMOTE, {"connection": HERE, "addPreviousOutputInEnv": "no"}, "addPreviousOutputInEnv", "boolean"),
        (REMOTE, {"connection": {"host": "h", "port": "22"}}, "connection.port", "type number"),
        (REMOTE, {"connection": {"host": "h", "dialErrorLimit": 1.5}}, "connection.dialErrorLimit", "integer"),
        (REMOTE, {"connection": {"host": "h", "password": "x"}}, "connection.password", "Fix: give privateKey"),
        (REMOTE, {"connection": {"host": "h", "proxy": {}}}, "connection.proxy.host", "must be given"),
        (LOCAL, {"assetPaths": ["*"]}, "assetPaths", "Fix: print"),
        (LOCAL, {"interpreter": "bash"}, "interpreter", "list of strings"),
        (COPY, {"connection": HERE, "remotePath": "/x"}, "source", "must be given"),
        (COPY, {"connection": HERE, "remotePath": "/x", "source": "file"}, "source", "asset or archive"),
        (COPY, {"connection": HERE, "remotePath": "/x", "source": {MARK: ASSET, "uri": "u"}}, "source", "FileAsset"),
    ],
)
def test_check_names_what_is_wrong(plugin: Plugin, token: str, inputs: Properties, path: str, reason: str) -> None:
    _, failures = plugin.check(token, inputs)
    assert list(failures) == [path]
    assert reason in failures[path]


def test_check_tells_every_problem_at_once(plugin: Plugin) -> None:
    _, failures = plugin.check(REMOTE, {"creat": "x", "logging": "loud"})
    assert set(failures) == {"connection", "creat", "logging"}


def test_an_unknown_type_is_refused_by_name(plugin: Plugin) -> None:
    request = provider_pb2.CheckRequest(urn=urn("command:remote:CopyFile"))
    message = plugin.failure(lambda: plugin.stub.Check(request))
    assert "command:remote:CopyFile" in message
    assert COPY in message


def test_changed_triggers_replace_and_other_changes_update(plugin: Plugin) -> None:
    old: Properties = {"create": "a", "triggers": ["1", "2"]}
    update, replace = provider_pb2.PropertyDiff.UPDATE, provider_pb2.PropertyDiff.UPDATE_REPLACE
    both = plugin.diff(REMOTE, old, {"create": "b", "triggers": ["1", "3"]})
    assert list(both.replaces) == ["triggers[1]"]
    assert {path: found.kind for path, found in both.detailedDiff.items()} == {"create": update, "triggers[1]": replace}
    only = plugin.diff(REMOTE, old, {**old, "create": "b"})
    assert (only.changes, list(only.replaces)) == (provider_pb2.DiffResponse.DIFF_SOME, [])
    assert plugin.diff(REMOTE, old, old).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_preview_runs_nothing_and_knows_no_output(plugin: Plugin, tmp_path: Any) -> None:
    inputs: Properties = {"create": f"touch {tmp_path}/made", "stdin": hidden("x")}
    _, outputs = plugin.create(LOCAL, inputs, preview=True)
    assert outputs == {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}
    changed = plugin.update(LOCAL, {**inputs, "stdout": "old", "stderr": ""}, {"create": "false"}, preview=True)
    assert changed["stdout"] == UNKNOWN
    assert not list(tmp_path.iterdir())


def test_refresh_keeps_the_state(plugin: Plugin) -> None:
    request = provider_pb2.ReadRequest(id="it1", urn=urn(REMOTE))
    request.properties.update({"stdout": "words", "create": "x"})
    request.inputs.update({"create": "x"})
    answer = plugin.stub.Read(request)
    assert (answer.id, answer.properties, answer.inputs) == ("it1", request.properties, request.inputs)
