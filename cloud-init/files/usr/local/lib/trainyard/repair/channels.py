"""The ways in which the head starts and stops the machines of its cluster: one class for each platform.

The clouds give the head a token that permits only to read, start and stop the cluster's own machines
(components/platforms/*/power.py). On existing hosts, the site's program does so (command.py). A machine has the name of
its node.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from typing import Any

from repair.power import CHANGING, OFF, ON, Power, PowerError, RefusedError

_SECONDS = 10.0
STATUS_SECONDS = 15.0
"""The longest time that the site's program can take (command.py)."""
AT_ONCE = 64
"""For how many hosts the site's program runs at the same time."""
_UNKNOWN_SECONDS = 60.0
_MISSING, _CONFLICT, _SERVER_ERROR = 404, 409, 500
_TEMPORARY = frozenset({408, _CONFLICT, 429})
_NO_CAPACITY = (
    "SkuNotAvailable",
    "OperationNotAllowed",
    "AllocationFailed",
    "ZonalAllocationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
)
"""Azure's codes for missing capacity and quota, which also come with the status 409 (issue 192 of Azure's
karpenter-provider-azure and issue 70 of azuresandbox, read 2026-11-27). Its other conflicts are with operations."""
_METADATA = "http://169.254.169.254"
"""The address of both clouds' metadata services. Only root can connect to it (stage 12-metadata)."""


def channel(settings: Mapping[str, str]) -> Power:
    """Return the channel that the hand-over describes. Raises KeyError if its platform is unknown."""
    kinds: dict[str, type[Azure | Gcp | Hosts | Local]] = {"azure": Azure, "gcp": Gcp, "hosts": Hosts, "local": Local}
    return kinds[settings["platform"]](settings)


class Local:
    """Machines on one computer. QEMU starts a program there for each connection that the head's machine opens."""

    _error: type[PowerError] = RefusedError
    """The type of the errors in answers."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: str(state) for name, state in self._ask("states", *names).items()}

    def start(self, name: str) -> None:
        self._ask("start", name)

    def stop(self, name: str) -> None:
        self._ask("stop", name)

    def failures(self) -> Mapping[str, str]:
        return {}

    def _ask(self, *request: str) -> Mapping[str, object]:
        address = self._settings["address"]
        try:
            with self._connect(address, len(request) - 1) as link:
                link.sendall((" ".join(request) + "\n").encode())
                with link.makefile() as stream:
                    answer: dict[str, object] = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise PowerError(f"{address}: {error}") from error
        if not isinstance(answer, dict):
            raise PowerError(f"{address}: the answer is not an object")
        if "error" in answer:
            raise self._error(str(answer["error"]))
        return answer

    def _connect(self, address: str, count: int) -> socket.socket:
        """Return a connection for a request with `count` names."""
        return socket.create_connection((address, int(self._settings["port"])), timeout=_SECONDS)


class Hosts(Local):
    """Existing hosts. systemd starts a program for each connection, which runs the site's program (command.py).

    The site's program cannot distinguish a lack of capacity from other errors, so all errors are temporary. A host
    whose state is unknown counts as missing, and is asked again after a minute, because a management controller that
    does not answer takes the whole time limit.
    """

    _error = PowerError

    def __init__(self, settings: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings)
        self._clock = clock
        self._asked_again: dict[str, float] = {}
        """Mapping from each host whose state is unknown to the time at which it is asked again."""

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        now = self._clock()
        asked = [name for name in names if self._asked_again.get(name, now) <= now]
        found = super().states(asked) if asked else {}
        waiting = {name: when for name, when in self._asked_again.items() if name not in asked}
        self._asked_again = waiting | {name: now + _UNKNOWN_SECONDS for name in asked if name not in found}
        return found

    def _connect(self, address: str, count: int) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        # All hosts may be silent. Without their answers, none of the hosts could be turned on.
        link.settimeout(STATUS_SECONDS * -(-count // AT_ONCE) + _SECONDS)
        try:
            link.connect(address)
        except OSError:
            link.close()
            raise
        return link


class _Token:
    """The metadata service's token, which is read again five minutes before it expires."""

    def __init__(self) -> None:
        self._text, self._until = "", 0.0

    def read(self, url: str, headers: Mapping[str, str]) -> str:
        if time.monotonic() >= self._until:
            found, now = _object(_request("GET", url, headers)), time.monotonic()
            self._text, lifetime = str(found.get("access_token")), str(found.get("expires_in"))
            self._until = now + int(lifetime) - 300 if lifetime.isdecimal() else 0.0
        return self._text


class Gcp:
    """Instances of Compute Engine, through its REST API (Google, "Compute Engine API v1", read 2026-11-26)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._metadata = settings.get("metadata", _METADATA) + "/computeMetadata/v1/"
        self._api = settings.get("api", "https://compute.googleapis.com") + "/compute/v1/"
        self._token = _Token()
        self._zone = ""
        self._starting: dict[str, str] = {}
        """Mapping from instance to the operation that starts it."""
        self._failed: dict[str, str] = {}

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        # The states of an instance: Google, "Instance lifecycle" (read 2026-11-26). A suspended instance still costs
        # money for its memory, and cannot be started but only resumed.
        known = {"RUNNING": ON, "TERMINATED": OFF}
        found = _read_each(names, lambda name: self._call("GET", f"instances/{name}"))
        return {name: known.get(str(row.get("status")), CHANGING) for name, row in found.items() if row}

    def start(self, name: str) -> None:
        self._starting[name] = str(self._call("POST", f"instances/{name}/start").get("name", ""))

    def stop(self, name: str) -> None:
        # The parameter is required for machines with local disks, which contain only scratch files (Google, "Method:
        # instances.stop", read 2026-11-26).
        self._call("POST", f"instances/{name}/stop?discardLocalSsd=true")

    def failures(self) -> Mapping[str, str]:
        # A look-up can fail, so the failures are kept until they are returned.
        for name, operation in list(self._starting.items()):
            try:
                row = self._call("GET", f"operations/{operation}")
            except RefusedError:
                row = {}
            if row and row.get("status") != "DONE":
                continue
            del self._starting[name]
            errors = row.get("error", {}).get("errors", [])
            if errors:
                self._failed[name] = ", ".join(str(error.get("code", error)) for error in errors)
        found, self._failed = self._failed, {}
        return found

    def _call(self, method: str, path: str) -> dict[str, Any]:
        headers = {"Metadata-Flavor": "Google"}
        if not self._zone:
            project = _request("GET", f"{self._metadata}project/project-id", headers).decode()
            # projects/NUMBER/zones/NAME
            zone = _request("GET", f"{self._metadata}instance/zone", headers).decode().rpartition("/")[2]
            self._zone = f"projects/{project}/zones/{zone}"
        token = self._token.read(f"{self._metadata}instance/service-accounts/default/token", headers)
        return _json(method, f"{self._api}{self._zone}/{path}", token)


class Azure:
    """Virtual machines of the head's resource group, through Azure Resource Manager.

    Sources: Microsoft, "Virtual Machines" in the REST API of Compute, version 2024-07-01, and "States and billing
    status of Azure Virtual Machines" (read 2026-11-26). After a failed start, the instance view contains the error's
    code. A machine that is stopped but not deallocated costs as much as a running one, so it counts as on.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._metadata = settings.get("metadata", _METADATA) + "/metadata/"
        self._api = settings.get("api", "https://management.azure.com")
        self._token = _Token()
        self._group = ""
        self._starting: set[str] = set()
        self._failed: dict[str, str] = {}

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        views = _read_each(names, lambda name: self._call("GET", name, "instanceView"))
        for name, view in views.items():
            codes = [str(status.get("code", "")) for status in view.get("statuses", [])]
            power = next((code.partition("/")[2] for code in codes if code.startswith("PowerState/")), None)
            if power is None:
                # The machine does not exist, or it is being created.
                continue
            found[name] = {"running": ON, "stopped": ON, "deallocated": OFF}.get(power, CHANGING)
            failed = [code for code in codes if code.startswith("ProvisioningState/failed/")]
            if name in self._starting and failed and found[name] == OFF:
                self._failed[name] = failed[0].rpartition("/")[2]
            if found[name] != CHANGING and (failed or found[name] == ON):
                self._starting.discard(name)
        return found

    def start(self, name: str) -> None:
        self._call("POST", name, "start")
        self._starting.add(name)

    def stop(self, name: str) -> None:
        self._call("POST", name, "deallocate")

    def failures(self) -> Mapping[str, str]:
        found, self._failed = self._failed, {}
        return found

    def _call(self, method: str, name: str, action: str) -> dict[str, Any]:
        headers = {"Metadata": "true"}
        if not self._group:
            place = _object(_request("GET", f"{self._metadata}instance/compute?api-version=2021-02-01", headers))
            if not {"subscriptionId", "resourceGroupName"} <= place.keys():
                raise PowerError("the metadata service did not name the machine's resource group")
            self._group = f"/subscriptions/{place['subscriptionId']}/resourceGroups/{place['resourceGroupName']}"
        query = "api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com%2F"
        token = self._token.read(f"{self._metadata}identity/oauth2/token?{query}", headers)
        path = f"{self._group}/providers/Microsoft.Compute/virtualMachines/{name}/{action}?api-version=2024-07-01"
        return _json(method, f"{self._api}{path}", token)


def _read_each(names: Collection[str], read: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what the API answers for each machine. Machines that it refuses to show are omitted.

    Raises RefusedError if it refuses to show all of them.
    """
    found: dict[str, dict[str, Any]] = {}
    refusal: RefusedError | None = None
    for name in names:
        try:
            found[name] = read(name)
        except RefusedError as error:
            refusal = error
    if refusal is not None and not found:
        raise refusal
    return found


def _json(method: str, url: str, token: str) -> dict[str, Any]:
    """Return the answer to a request, or an empty one if the resource does not exist."""
    return _object(_request(method, url, {"Authorization": f"Bearer {token}"}, missing=b"{}") or b"{}")


def _object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises PowerError if the answer is malformed, for example a proxy's page."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PowerError(f"the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PowerError("the answer is not a JSON object")
    return found


def _request(method: str, url: str, headers: Mapping[str, str], missing: bytes | None = None) -> bytes:
    """Return the body of the answer, or `missing` if the answer is 404. Raises PowerError with the API's error code."""
    # The services' redirects would send the token to another server. No proxy is used, because tokens are secret.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    data = b"" if method == "POST" else None
    # Otherwise, urllib would declare the empty body as a form.
    types = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data=data, headers={**headers, **types}, method=method)  # noqa: S310  (own URLs)
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        if error.code == _MISSING and missing is not None:
            return missing
        text, is_not_ready = _explanation(error)
        is_temporary = error.code in _TEMPORARY or error.code >= _SERVER_ERROR or is_not_ready
        is_refused = not is_temporary or (error.code == _CONFLICT and text.startswith(_NO_CAPACITY))
        raise (RefusedError if is_refused else PowerError)(f"{error.code} {text}".strip()) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PowerError(f"{method} {url.partition('?')[0]}: {error}") from error


def _explanation(answer: urllib.error.HTTPError) -> tuple[str, bool]:
    """Return the error's code and message in an answer of Azure or Google Cloud, and whether a resource is not ready.

    Google Cloud answers 400 with the reason resourceNotReady while another operation changes the resource.
    """
    try:
        error = json.loads(answer.read())["error"]
        reasons = [row.get("reason") for row in error.get("errors", [])]
        return f"{error.get('code', '')}: {error.get('message', '')}"[:300], "resourceNotReady" in reasons
    except (OSError, ValueError, KeyError, TypeError, AttributeError, http.client.HTTPException):
        return "", False


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object) -> None:
        return None
