"""The clouds' APIs for starting and stopping machines, with a simulated API and metadata service on loopback.

The simulation follows the documented requests and answers. No cloud has answered them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from repair.channels import channel
from repair.power import CHANGING, OFF, ON, Power, PowerError, RefusedError

GCP = "/compute/v1/projects/my-project/zones/us-central1-a"
AZURE = "/subscriptions/s/resourceGroups/yard/providers/Microsoft.Compute/virtualMachines"
METADATA = {
    "/computeMetadata/v1/project/project-id": "my-project",
    "/computeMetadata/v1/instance/zone": "projects/7/zones/us-central1-a",
    "/computeMetadata/v1/instance/service-accounts/default/token": json.dumps({"access_token": "secret"}),
    "/metadata/instance/compute": json.dumps({"subscriptionId": "s", "resourceGroupName": "yard"}),
    "/metadata/identity/oauth2/token": json.dumps({"access_token": "secret"}),
}


@dataclass
class Cloud:
    """The metadata service and the API. `answers` maps requests to status codes and bodies."""

    address: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lifetime: str | None = None
    """How many seconds a token is valid. Azure writes the number as text."""
    tokens: int = 0
    """The number of tokens that the metadata service has issued."""

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        bare, _, query = path.partition("?")
        if text := METADATA.get(bare):
            is_allowed = headers.get("Metadata-Flavor") == "Google" or headers.get("Metadata") == "true"
            if bare.endswith("/token"):
                self.tokens += 1
                text = json.dumps(json.loads(text) | {"expires_in": self.lifetime})
            return (200, text) if is_allowed else (403, "")
        if headers.get("Authorization") != "Bearer secret":
            return 401, ""
        if method == "POST" and headers.get("Content-Type") != "application/json":
            return 415, ""
        if bare.endswith("/stop") and query != "discardLocalSsd=true":
            return 400, json.dumps({"error": {"code": 400, "message": "local disks"}})
        if bare.startswith("/subscriptions/") and "api-version=" not in query:
            return 400, ""
        self.requests.append(f"{method} {bare}")
        code, body = self.answers.get(f"{method} {bare}", (404, {"error": {"code": "NotFound", "message": bare}}))
        return code, json.dumps(body) if body is not None else ""


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    found = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            code, body = found.answer(self.command, self.path, dict(self.headers))
            self.send_response(code)
            if code == 302:
                self.send_header("Location", body.strip('"'))
            # The status 206 stands for an answer that is cut off.
            self.send_header("Content-Length", str(len(body) + (5 if code == 206 else 0)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = _serve

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.address = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


Connect = Callable[[str], Power]


@pytest.fixture
def connect(cloud: Cloud) -> Connect:
    def connected(platform: str) -> Power:
        found = channel({"platform": platform, "metadata": cloud.address, "api": cloud.address})
        assert found is not None
        return found

    return connected


def view(*codes: str) -> tuple[int, Any]:
    return 200, {"statuses": [{"code": code} for code in codes]}


def test_machines_on_google_cloud_are_read_started_and_stopped(cloud: Cloud, connect: Connect) -> None:
    power = connect("gcp")
    statuses = {"a": "RUNNING", "b": "TERMINATED", "c": "STAGING", "d": "STOPPING", "e": "SUSPENDED"}
    cloud.answers = {f"GET {GCP}/instances/{name}": (200, {"status": status}) for name, status in statuses.items()}
    assert power.states([*statuses, "missing"]) == {"a": ON, "b": OFF, "c": CHANGING, "d": CHANGING, "e": CHANGING}
    cloud.answers |= {
        f"POST {GCP}/instances/b/start": (200, {"name": "operation-1", "status": "RUNNING"}),
        f"POST {GCP}/instances/a/stop": (200, {"name": "operation-2"}),
        f"GET {GCP}/operations/operation-1": (200, {"status": "RUNNING"}),
    }
    power.start("b")
    power.stop("a")
    assert power.failures() == {}
    error = {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "..."}]}
    cloud.answers[f"GET {GCP}/operations/operation-1"] = (200, {"status": "DONE", "error": error})
    assert power.failures() == {"b": "ZONE_RESOURCE_POOL_EXHAUSTED"}
    assert power.failures() == {}
    assert [request for request in cloud.requests if request.startswith("POST")] == [
        f"POST {GCP}/instances/b/start",
        f"POST {GCP}/instances/a/stop",
    ]


def test_machines_on_azure_are_read_started_and_deallocated(cloud: Cloud, connect: Connect) -> None:
    power = connect("azure")
    states = {"a": "running", "b": "deallocated", "c": "starting", "d": "deallocating", "e": "stopped"}
    cloud.answers = {
        f"GET {AZURE}/{name}/instanceView": view("ProvisioningState/succeeded", f"PowerState/{state}")
        for name, state in states.items()
    }
    found = power.states([*states, "missing"])
    # A machine that is only stopped still costs money, so it has to be deallocated.
    assert found == {"a": ON, "b": OFF, "c": CHANGING, "d": CHANGING, "e": ON}
    cloud.answers |= {f"POST {AZURE}/b/start": (202, None), f"POST {AZURE}/a/deallocate": (202, None)}
    power.start("b")
    power.stop("a")
    assert power.failures() == {}
    cloud.answers[f"GET {AZURE}/b/instanceView"] = view(
        "ProvisioningState/failed/AllocationFailed", "PowerState/deallocated"
    )
    assert power.states(["b"]) == {"b": OFF}
    assert power.failures() == {"b": "AllocationFailed"}
    # The view contains the error until the next start.
    assert power.states(["b"]) == {"b": OFF}
    assert power.failures() == {}


@pytest.mark.parametrize("platform", ["gcp", "azure"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((403, {"code": "AuthorizationFailed"}), RefusedError),
        ((409, {"code": "SkuNotAvailable"}), RefusedError),
        ((409, {"code": "OperationNotAllowed"}), RefusedError),
        ((409, {"code": "Conflict"}), PowerError),
        ((400, {"code": 400, "errors": [{"reason": "invalid"}]}), RefusedError),
        ((400, {"code": 400, "errors": [{"reason": "resourceNotReady"}]}), PowerError),
        ((429, {"code": "TooManyRequests"}), PowerError),
        ((500, {"code": "InternalError"}), PowerError),
        ((503, {"code": "Busy"}), PowerError),
    ],
)
def test_a_refused_start_is_distinguished_from_a_temporary_error(
    cloud: Cloud, connect: Connect, platform: str, answer: tuple[int, dict[str, Any]], kind: type[PowerError]
) -> None:
    status, error = answer
    path = f"{GCP}/instances/b/start" if platform == "gcp" else f"{AZURE}/b/start"
    cloud.answers[f"POST {path}"] = status, {"error": {**error, "message": "none left"}}
    with pytest.raises(PowerError, match=f"^{status} {error['code']}: none left$") as caught:
        connect(platform).start("b")
    assert type(caught.value) is kind


@pytest.mark.parametrize("platform", ["gcp", "azure"])
def test_a_machine_that_cannot_be_read_does_not_hide_the_others(cloud: Cloud, connect: Connect, platform: str) -> None:
    power = connect(platform)
    path = f"{GCP}/instances/{{}}" if platform == "gcp" else f"{AZURE}/{{}}/instanceView"
    running = (200, {"status": "RUNNING"}) if platform == "gcp" else view("PowerState/running")
    denied = (403, {"error": {"code": "Forbidden", "message": "no"}})
    cloud.answers = {f"GET {path.format('a')}": denied, f"GET {path.format('b')}": running}
    assert power.states(["a", "b"]) == {"b": ON}
    with pytest.raises(RefusedError, match=r"^403 Forbidden: no$"):
        power.states(["a"])


def test_a_start_whose_operation_cannot_be_read_is_not_a_failure(cloud: Cloud, connect: Connect) -> None:
    power = connect("gcp")
    cloud.answers = {
        f"POST {GCP}/instances/b/start": (200, {"name": "o"}),
        f"GET {GCP}/operations/o": (403, {"error": {"code": 403, "message": "no"}}),
    }
    power.start("b")
    assert power.failures() == {}


def test_a_failed_look_up_of_an_operation_does_not_hide_another_failure(cloud: Cloud, connect: Connect) -> None:
    power = connect("gcp")
    failed = (200, {"status": "DONE", "error": {"errors": [{"code": "QUOTA_EXCEEDED"}]}})
    cloud.answers = {
        f"POST {GCP}/instances/a/start": (200, {"name": "o-a"}),
        f"POST {GCP}/instances/b/start": (200, {"name": "o-b"}),
        f"GET {GCP}/operations/o-a": failed,
        f"GET {GCP}/operations/o-b": (503, None),
    }
    power.start("a")
    power.start("b")
    with pytest.raises(PowerError):
        power.failures()
    cloud.answers[f"GET {GCP}/operations/o-b"] = (200, {"status": "RUNNING"})
    assert power.failures() == {"a": "QUOTA_EXCEEDED"}


@pytest.mark.parametrize(("lifetime", "tokens"), [("3600", 1), ("60", 3), ("soon", 3), (None, 3)])
@pytest.mark.parametrize("platform", ["gcp", "azure"])
def test_a_token_is_used_until_it_expires(
    cloud: Cloud, connect: Connect, platform: str, lifetime: str | None, tokens: int
) -> None:
    cloud.lifetime = lifetime
    connect(platform).states(["a", "b", "c"])
    assert cloud.tokens == tokens


@pytest.mark.parametrize("platform", ["gcp", "azure"])
def test_a_redirect_receives_no_token(cloud: Cloud, connect: Connect, platform: str) -> None:
    path = f"{GCP}/instances/a" if platform == "gcp" else f"{AZURE}/a/instanceView"
    cloud.answers[f"GET {path}"] = 302, f"{cloud.address}/elsewhere"
    with pytest.raises(PowerError):
        connect(platform).states(["a"])
    assert cloud.requests == [f"GET {path}"]


@pytest.mark.parametrize("body", [(200, []), (200, "a proxy's page"), (206, {"status": "RUNNING"})])
@pytest.mark.parametrize("platform", ["azure", "gcp"])
def test_a_malformed_answer_is_a_temporary_error(
    cloud: Cloud, connect: Connect, platform: str, body: tuple[int, Any]
) -> None:
    path = f"{AZURE}/a/instanceView" if platform == "azure" else f"{GCP}/instances/a"
    cloud.answers[f"GET {path}"] = body
    with pytest.raises(PowerError):
        connect(platform).states(["a"])


def test_an_unreachable_service_is_a_temporary_error() -> None:
    power = channel({"platform": "gcp", "metadata": "http://127.0.0.1:9", "api": "http://127.0.0.1:9"})
    assert power is not None
    with pytest.raises(PowerError) as caught:
        power.states(["a"])
    assert type(caught.value) is PowerError
