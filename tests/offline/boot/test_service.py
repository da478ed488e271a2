"""The metadata service of a booted machine, which QEMU starts for each connection."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from offline.boot import service

TREE: dict[str, dict[str, Any]] = {
    "instance": {
        "attributes": {"user-data": "#cloud-config\n", "enable-guest-attributes": "TRUE"},
        "id": 4711,
        "network-interfaces": {"0": {"access-configs": {"0": {"external-ip": "127.77.0.1"}}, "ip": "10.77.0.4"}},
    },
    "project": {"project-id": "mine"},
}
AZURE: dict[str, Any] = {
    "imds": {"instance": {"compute": {"vmId": "4711"}}},
    "commands": [{"name": "key", "script": "cat <key", "seconds": 30.0}],
}
GOOGLE = {"Metadata-Flavor": "Google"}


@contextmanager
def connected(name: str, folder: Path, tree: object) -> Iterator[http.client.HTTPConnection]:
    """Yield a guest's connection to a service."""
    (folder / "metadata.json").write_text(json.dumps(tree))
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-IS", str(service.__file__), name, str(folder)]
    with subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno()) as process:
        theirs.close()
        connection = http.client.HTTPConnection("169.254.169.254")
        connection.sock = ours
        yield connection
        connection.close()
        assert process.wait(10) == 0  # the service ends with the connection


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    """A guest's connection to Google's metadata server."""
    with connected("gce", tmp_path, TREE) as connection:
        yield connection


def ask(
    guest: http.client.HTTPConnection, path: str, method: str = "GET", body: str | None = None, **more: str
) -> tuple[int, str, Any]:
    guest.request(method, path, body, headers={**GOOGLE, **{name.replace("_", "-"): more[name] for name in more}})
    answer = guest.getresponse()
    return answer.status, answer.read().decode(), answer.headers


ROOT = "/computeMetadata/v1"


def test_values_lists_and_trees_are_returned(guest: http.client.HTTPConnection) -> None:
    assert ask(guest, f"{ROOT}/instance/id")[:2] == (200, "4711")
    assert ask(guest, f"{ROOT}/instance/attributes/user-data")[:2] == (200, "#cloud-config\n")
    assert ask(guest, f"{ROOT}/instance/attributes/")[1].split() == ["user-data", "enable-guest-attributes"]
    assert ask(guest, f"{ROOT}/instance/network-interfaces/0/")[1].split() == ["access-configs/", "ip"]
    assert ask(guest, f"{ROOT}/instance/missing")[0] == 404
    _, text, headers = ask(guest, f"{ROOT}/?recursive=true&alt=json")
    found = json.loads(text)
    assert headers["Metadata-Flavor"] == "Google"
    assert headers["Content-Type"] == "application/json"
    assert found["instance"]["attributes"] == TREE["instance"]["attributes"]
    assert found["instance"]["networkInterfaces"] == [
        {"accessConfigs": [{"externalIp": "127.77.0.1"}], "ip": "10.77.0.4"}
    ]
    assert found["project"] == {"projectId": "mine"}


def test_requests_without_the_header_or_through_a_proxy_are_refused(guest: http.client.HTTPConnection) -> None:
    guest.request("GET", f"{ROOT}/instance/id")
    answer = guest.getresponse()
    assert (answer.status, b"Metadata-Flavor" in answer.read()) == (403, True)
    assert ask(guest, f"{ROOT}/instance/id", X_Forwarded_For="10.0.0.1")[0] == 403
    assert ask(guest, "/")[:2] == (200, "computeMetadata/\n")


def test_guests_write_guest_attributes(guest: http.client.HTTPConnection, tmp_path: Path) -> None:
    path = f"{ROOT}/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert ask(guest, path)[0] == 404
    assert ask(guest, path, "PUT", "AAAA")[0] == 200
    assert ask(guest, path)[:2] == (200, "AAAA")
    assert service.read_attributes(tmp_path) == {"hostkeys": {"ssh-ed25519": "AAAA"}}
    assert ask(guest, f"{ROOT}/instance/attributes/user-data", "PUT", "x")[0] == 404
    disabled = {**TREE, "instance": {**TREE["instance"], "attributes": {}}}
    (tmp_path / "metadata.json").write_text(json.dumps(disabled))
    assert ask(guest, path, "PUT", "AAAA")[0] == 403


def test_a_waiting_request_ends_with_the_change_or_the_timeout(
    guest: http.client.HTTPConnection, tmp_path: Path
) -> None:
    watched = f"{ROOT}/instance/?recursive=true&wait_for_change=true"
    etag = ask(guest, f"{ROOT}/instance/?recursive=true")[2]["ETag"]
    begin = time.monotonic()
    assert ask(guest, f"{watched}&timeout_sec=1&last_etag={etag}")[2]["ETag"] == etag
    assert time.monotonic() - begin >= 1

    def preempt() -> None:
        changed = {**TREE, "instance": {**TREE["instance"], "preempted": "TRUE"}}
        (tmp_path / "new").write_text(json.dumps(changed))
        (tmp_path / "new").replace(tmp_path / "metadata.json")

    timer = threading.Timer(0.3, preempt)
    timer.start()
    assert json.loads(ask(guest, f"{watched}&timeout_sec=60&last_etag={etag}")[1])["preempted"] == "TRUE"
    timer.join()


def test_an_old_etag_is_answered_immediately(guest: http.client.HTTPConnection) -> None:
    begin = time.monotonic()
    assert ask(guest, f"{ROOT}/?recursive=true&wait_for_change=true&timeout_sec=60&last_etag=NONE")[0] == 200
    assert time.monotonic() - begin < 10


PATHS = {"gce": f"{ROOT}/instance/id", "imds": "/metadata/instance?api-version=1", "wire": "/machine/?comp=goalstate"}


@pytest.mark.parametrize(
    ("name", "age", "slow"),
    [("gce", 0, True), ("gce", 301, False), ("imds", 0, True), ("wire", 0, True), ("firewall", 0, False)],
)
def test_the_clouds_services_are_slow_for_five_minutes(tmp_path: Path, name: str, age: int, slow: bool) -> None:
    (tmp_path / "firewall").write_text("first\n")
    (tmp_path / "delay").write_text("1.5")
    written = time.time() - age
    os.utime(tmp_path / "delay", (written, written))
    with connected(name, tmp_path, TREE if name == "gce" else AZURE) as guest:
        begin = time.monotonic()
        assert ask(guest, PATHS.get(name, "/none"), Metadata="true")[0] == 200
        assert (time.monotonic() - begin >= 1.5) is slow


def test_azures_metadata_service_requires_header_and_version(tmp_path: Path) -> None:
    with connected("imds", tmp_path, AZURE) as guest:
        path = "/metadata/instance/compute/?api-version=2021-08-01"
        assert ask(guest, path)[0] == 400
        assert json.loads(ask(guest, path, Metadata="true")[1]) == {"vmId": "4711"}
        assert ask(guest, "/metadata/instance", Metadata="true")[0] == 400
        assert (
            ask(guest, "/metadata/instance/compute/vmId?api-version=2021-08-01&format=text", Metadata="true")[1]
            == "4711"
        )
        assert ask(guest, "/metadata/missing?api-version=1", Metadata="true")[0] == 404


def test_azures_agent_receives_run_commands_and_reports_their_output(tmp_path: Path) -> None:
    with connected("wire", tmp_path, AZURE) as guest:
        state = ElementTree.fromstring(ask(guest, "/machine/?comp=goalstate")[1])  # noqa: S314
        assert state.findtext("Incarnation") == "2"  # a new run command changes it
        uri = str(state.findtext(".//ExtensionsConfig"))
        extensions = ElementTree.fromstring(ask(guest, uri.partition(":80")[2])[1])  # noqa: S314
        settings = json.loads(str(extensions.findtext(".//ExtensionRuntimeSettings")))
        assert settings["runtimeSettings"][0]["handlerSettings"]["publicSettings"] == AZURE["commands"][0]
        assert ask(guest, "/machine?comp=health", "POST", "<Health/>")[0] == 200
    assert (tmp_path / "health.log").read_text() == "<Health/>\n"
    assert service.read_command(tmp_path, "key") is None
    message = {"status": "success", "formattedMessage": {"message": "ssh-ed25519 AAAA"}}
    report = {"extensionName": "key", "settingsStatus": {"status": message}}
    status = {"aggregateStatus": {"handlerAggregateStatus": [{"runtimeSettingsStatus": report}]}}
    body = json.dumps({"content": base64.b64encode(json.dumps(status).encode()).decode()})
    with connected("hostga", tmp_path, AZURE) as guest:
        assert json.loads(ask(guest, "/versions")[1]) == ["2015-09-01"]
        assert ask(guest, "/status", "PUT", body)[0] == 201
        assert ask(guest, "/vmSettings")[0] == 404
    assert service.read_command(tmp_path, "key") == ("success", "ssh-ed25519 AAAA")


def test_changed_firewall_rules_are_sent_at_once(tmp_path: Path) -> None:
    (tmp_path / "firewall").write_text("first\n")
    with connected("firewall", tmp_path, {}) as guest:
        status, text, _ = ask(guest, "/none")
        mark, digest = text.splitlines()[0].split()
        assert (status, mark, text.splitlines()[1:]) == (200, "#", ["first"])
        timer = threading.Timer(0.3, (tmp_path / "firewall").write_text, ["second\n"])
        timer.start()
        assert ask(guest, f"/{digest}")[1].splitlines()[1:] == ["second"]
        timer.join()
