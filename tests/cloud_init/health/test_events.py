"""Events that the clouds announce, read from a metadata server on loopback. health/system.py cites the formats."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from health.daemon import run_check
from health.node import FAIL, PASS, UNKNOWN, Node, Outcome, Ran, checks_for, load_checks, metadata
from health.slurm import warn_jobs
from health.verdicts import Ledger

CHECK = load_checks()["event"]
DMI = "sys/class/dmi/id"


@dataclass
class Metadata:
    """Texts by path. A request without the cloud's header is refused."""

    header: tuple[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    address: str = ""


@pytest.fixture
def service() -> Iterator[Metadata]:
    found = Metadata(("", ""))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, value = found.header
            known = self.headers.get(name) == value and self.path in found.texts
            body = found.texts[self.path].encode() if known else b""
            self.send_response(200 if known else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def machine(root: Path, service: Metadata, file: str, text: str) -> Node:
    (root / DMI).mkdir(parents=True)
    (root / DMI / file).write_text(f"{text}\n")
    return Node(root=root, fetch=partial(metadata, server=service.address))


@pytest.fixture
def azure(tmp_path: Path, service: Metadata) -> Node:
    service.header = ("Metadata", "true")
    service.texts["/metadata/instance/compute/name?api-version=2021-02-01&format=text"] = "yard-gpu-0"
    return machine(tmp_path, service, "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")


@pytest.fixture
def google(tmp_path: Path, service: Metadata) -> Node:
    service.header = ("Metadata-Flavor", "Google")
    announce_google(service, "FALSE", "NONE")
    return machine(tmp_path, service, "product_name", "Google Compute Engine")


def announce_azure(service: Metadata, kind: str, resource: str = "yard-gpu-0", status: str = "Scheduled") -> None:
    event = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [resource],
        "EventStatus": status,
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT" if status == "Scheduled" else "",
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    document = {"DocumentIncarnation": 2, "Events": [event] if kind else []}
    service.texts["/metadata/scheduledevents?api-version=2020-07-01"] = json.dumps(document)


def announce_google(service: Metadata, preempted: str, maintenance: str) -> None:
    service.texts["/computeMetadata/v1/instance/preempted"] = preempted
    service.texts["/computeMetadata/v1/instance/maintenance-event"] = maintenance


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy", "Preempt", "Terminate"])
def test_event_of_this_azure_machine_is_a_fault(kind: str, azure: Node, service: Metadata) -> None:
    announce_azure(service, kind)
    text = f"the cloud announces {kind} after Mon, 19 Sep 2016 18:29:47 GMT"
    assert run_check(azure, CHECK) == Outcome(FAIL, text)


def test_host_error_that_has_begun_is_a_fault(azure: Node, service: Metadata) -> None:
    announce_azure(service, "Reboot", status="Started")
    assert run_check(azure, CHECK) == Outcome(FAIL, "the cloud announces Reboot")


@pytest.mark.parametrize(("kind", "resource"), [("Freeze", "yard-gpu-0"), ("Preempt", "yard-gpu-1"), ("", "")])
def test_other_azure_events_are_no_fault(kind: str, resource: str, azure: Node, service: Metadata) -> None:
    announce_azure(service, kind, resource)
    assert run_check(azure, CHECK).state == PASS


@pytest.mark.parametrize(
    ("preempted", "maintenance", "text"),
    [
        ("TRUE", "NONE", "the cloud announces preemption"),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", "the cloud announces termination for host maintenance"),
    ],
)
def test_end_of_a_google_machine_is_a_fault(
    preempted: str, maintenance: str, text: str, google: Node, service: Metadata
) -> None:
    announce_google(service, preempted, maintenance)
    assert run_check(google, CHECK) == Outcome(FAIL, text)


@pytest.mark.parametrize("maintenance", ["NONE", "MIGRATE_ON_HOST_MAINTENANCE"])
def test_migration_of_a_google_machine_is_no_fault(maintenance: str, google: Node, service: Metadata) -> None:
    announce_google(service, "FALSE", maintenance)
    assert run_check(google, CHECK).state == PASS


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_metadata_service_without_an_answer_is_no_fault(
    cloud: str, service: Metadata, request: pytest.FixtureRequest
) -> None:
    node = request.getfixturevalue(cloud)
    service.texts.clear()
    assert run_check(node, CHECK).state == UNKNOWN


def test_other_machines_do_not_ask(tmp_path: Path) -> None:
    assert "event" not in {check.id for check in checks_for(Node(root=tmp_path), "periodic")}


def test_event_drains_at_once_and_ends_with_it() -> None:
    ledger = Ledger("boot")
    assert ledger.record(CHECK, Outcome(FAIL, "the cloud announces Preempt"), 1.0)
    assert ledger.worst is not None
    assert ledger.worst.reason == "TY:event: the cloud announces Preempt"
    assert [ledger.record(CHECK, Outcome(PASS), 2.0) for _ in range(2)] == [False, True]


def test_only_jobs_of_yard_are_warned(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], timeout: float) -> Ran:
        calls.append(argv)
        commands = (
            "/shared/jobs/a-1/job.sbatch",
            "/shared/jobs/b/code/job.sbatch",
            "/home/trainer/job.sbatch",
            "(null)",
        )
        return Ran(0, "".join(f"{number} {command}\n" for number, command in enumerate(commands, 7)))

    assert warn_jobs(Node(root=tmp_path, run=run))
    assert calls[1:] == [["scancel", "--batch", "--signal=USR2", "7"]]


def test_failed_squeue_is_tried_again(tmp_path: Path) -> None:
    assert not warn_jobs(Node(root=tmp_path, run=lambda argv, timeout: Ran(1, "error")))
