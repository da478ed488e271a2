"""Serves one connection to a cloud's service for guests on stdin and stdout: service.py SERVICE FOLDER.

The services are Google's metadata server (gce), Azure's IMDS (imds), wireserver (wire) and HostGAPlugin (hostga), and
the firewall rules (firewall).
QEMU starts this program for each connection that a guest opens to the service's address. The connection therefore
identifies the guest, as on the cloud, and there is no server process that must be ended. `FOLDER` contains
metadata.json, which the simulated cloud writes. The program uses only the standard library, and few modules, because
it starts dozens of times during a boot.

Sources: Google, "About VM metadata" and "Guest attributes"; Microsoft, "Azure Instance Metadata Service"; canonical/
cloud-init 25.1.4 (DataSourceGCE.py, DataSourceAzure.py, helpers/azure.py); google-guest-agent 20211116 and waagent
2.12.0.2 of Debian 13 (azurelinuxagent/common/protocol), all read 2026-11-25.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_ROOT = "/computeMetadata/v1/"
_ATTRIBUTES = ("instance", "guest-attributes")
_SLOW_SECONDS = 300
"""Duration of the delays. Google's agent retries requests that take longer than its timeouts without a limit, and
cloud-init waits for the agent (with delays of 30 s, a booted machine of gcp-a2 waited until they ended)."""
_PERIOD = 0.5
_LONGEST_WAIT = 3600.0
_REASONS = {200: "OK", 201: "Created", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Mapping from lower-case names to values."""
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Response:
    code: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def answer_gce(request: Request, folder: Path, wait: Callable[[float], bool]) -> Response:
    """Answer a request as Google's metadata server does.

    `wait` sleeps for a number of seconds, and returns whether the guest has closed the connection.
    """
    if request.path == "/":
        return _gce(200, b"computeMetadata/\n", "application/text", "")
    # Without the header, a request could come from a program that was tricked into sending it.
    if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
        return _gce(403, b"Missing Metadata-Flavor:Google header.\n", "text/html", "")
    keys = tuple(filter(None, unquote(request.path.removeprefix(_ROOT)).split("/")))
    if not request.path.startswith(_ROOT):
        return _gce(404, b"", "text/html", "")
    if request.method == "PUT":
        return _put_attribute(keys, request.body, folder)
    found = _find(folder, keys)
    if request.query.get("wait_for_change") == "true":
        deadline = time.monotonic() + float(request.query.get("timeout_sec") or _LONGEST_WAIT)
        last = request.query.get("last_etag") or _etag(found)
        while _etag(found) == last and time.monotonic() < deadline:
            if wait(_PERIOD):
                break
            found = _find(folder, keys)
    if found is None:
        return _gce(404, b"", "text/html", "")
    recursive = request.query.get("recursive", "").lower() == "true"
    if request.query.get("alt") == "json" or (recursive and request.query.get("alt") != "text"):
        text, kind = json.dumps(_camel(found, keys) if recursive else _listing(found)), "application/json"
    else:
        text, kind = (
            (found if isinstance(found, str) else "".join(f"{n}\n" for n in _listing(found))),
            "application/text",
        )
    return _gce(200, str(text).encode(), kind, _etag(found))


def _gce(code: int, body: bytes, kind: str, etag: str) -> Response:
    headers = {"Metadata-Flavor": "Google", "Content-Type": kind, "Server": "Metadata Server for VM"}
    return Response(code=code, body=body, headers={**headers, "ETag": etag} if etag else headers)


def _find(folder: Path, keys: tuple[str, ...]) -> Any:
    """Return the value or the subtree at a path, or None if there is none."""
    found: Any = json.loads((folder / "metadata.json").read_text())
    if found["instance"].get("attributes", {}).get("enable-guest-attributes") == "TRUE":
        found["instance"]["guest-attributes"] = read_attributes(folder)
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found if isinstance(found, dict) else str(found)


def _listing(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return [f"{name}/" if isinstance(value, dict) else name for name, value in found.items()]


def _camel(value: Any, keys: tuple[str, ...]) -> Any:
    """Return a subtree as JSON for `recursive=true`: with camelCase names, except those that users chose."""
    if not isinstance(value, dict):
        return value
    if keys[-1:] in {("attributes",), ("guest-attributes",)} or keys[:2] == _ATTRIBUTES:
        return value
    if value and all(name.isdigit() for name in value):
        return [_camel(item, (*keys, name)) for name, item in value.items()]
    return {_camel_name(name): _camel(item, (*keys, name)) for name, item in value.items()}


def _camel_name(name: str) -> str:
    first, *others = name.split("-")
    return first + "".join(map(str.capitalize, others))


def _etag(found: Any) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _put_attribute(keys: tuple[str, ...], body: bytes, folder: Path) -> Response:
    """Store a guest attribute (instance/guest-attributes/NAMESPACE/KEY)."""
    match keys:
        case ("instance", "guest-attributes", namespace, key):
            pass
        case _:
            return _gce(404, b"", "text/html", "")
    if _find(folder, _ATTRIBUTES) is None:
        return _gce(403, b"Guest attributes endpoint access is disabled.\n", "text/html", "")
    with (folder / "attributes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read_attributes(folder)
        known.setdefault(namespace, {})[key] = body.decode(errors="replace")
        new = folder / "guest-attributes.new"
        new.write_text(json.dumps(known))
        new.replace(folder / "guest-attributes.json")
    return _gce(200, b"", "text/html", "")


def read_attributes(folder: Path) -> dict[str, dict[str, str]]:
    """Return the guest attributes by namespace and key."""
    try:
        found: dict[str, dict[str, str]] = json.loads((folder / "guest-attributes.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def answer_imds(request: Request, folder: Path, _: Callable[[float], bool]) -> Response:
    """Answer a request as Azure's Instance Metadata Service does."""
    if request.headers.get("metadata") != "true" or "x-forwarded-for" in request.headers:
        return _json(400, {"error": "Bad request. Required metadata header not specified"})
    if not request.query.get("api-version"):
        return _json(400, {"error": "Bad request. api-version was not specified in the request"})
    found: Any = json.loads((folder / "metadata.json").read_text())["imds"]
    for key in filter(None, request.path.removeprefix("/metadata/").split("/")):
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        return _json(404, {"error": "Not found"})
    if request.query.get("format") == "text" and isinstance(found, str):
        return Response(code=200, body=found.encode(), headers={"Content-Type": "text/plain"})
    return _json(200, found)


_CONTAINER, _INSTANCE = "00000000-0000-0000-0000-0000000c0de0", "_offline"
_HANDLER, _VERSION = "Microsoft.CPlat.Core.RunCommandHandlerLinux", "1.3.99"
_WIRE = "http://168.63.129.16"
_VERSIONS = (
    "<Versions><Preferred><Version>2015-04-05</Version></Preferred><Supported><Version>2015-04-05</Version>"
    "<Version>2012-11-30</Version></Supported></Versions>"
)
_HOSTING = (
    '<HostingEnvironmentConfig><Deployment name="offline"/><Incarnation instance="_offline"/><Role name="_offline"/>'
    "</HostingEnvironmentConfig>"
)
_MANIFEST = (
    f"<PluginVersionManifest><Plugins><Plugin><Version>{_VERSION}</Version><Uris><Uri>{_WIRE}/offline/handler.zip"
    "</Uri></Uris></Plugin></Plugins></PluginVersionManifest>"
)


def answer_wire(request: Request, folder: Path, _: Callable[[float], bool]) -> Response:
    """Answer a request as Azure's wireserver does: the goal state and its parts, health reports and packages."""
    component, kind = request.query.get("comp"), request.query.get("type")
    commands = json.loads((folder / "metadata.json").read_text())["commands"]
    texts = {
        "versions": _VERSIONS,
        "goalstate": _goal_state(len(commands) + 1),
        "extensionsConfig": _extensions(commands),
        "hostingEnvironmentConfig": _HOSTING,
        "sharedConfig": '<SharedConfig><Deployment name="offline"/></SharedConfig>',
        "/offline/manifest.xml": _MANIFEST,
    }
    for key in (kind, component, request.path):
        if key in texts and request.method == "GET":
            return _xml(texts[key])
    if component == "health":
        with (folder / "health.log").open("ab") as log:
            log.write(request.body + b"\n")
    if request.path == "/offline/handler.zip":
        return Response(code=200, body=(folder / "handler.zip").read_bytes())
    if request.path == "/offline/status":
        return _store_status(request.body, folder)
    return Response(code=200 if request.method == "POST" else 404)


def answer_hostga(request: Request, folder: Path, _: Callable[[float], bool]) -> Response:
    """Answer a request as Azure's HostGAPlugin does. Without vmSettings, the agent uses the wireserver's goal state."""
    if request.path == "/versions":
        return _json(200, ["2015-09-01"])
    if request.path == "/status" and request.method == "PUT":
        return _store_status(base64.b64decode(json.loads(request.body)["content"]), folder)
    return Response(code=200 if request.path in {"/health", "/vmAgentLog"} else 404)


def _goal_state(incarnation: int) -> str:
    def uri(kind: str) -> str:
        return f"{_WIRE}:80/machine/{_CONTAINER}/{_INSTANCE}?comp=config&amp;type={kind}&amp;incarnation={incarnation}"

    return (
        f"<GoalState><Version>2015-04-05</Version><Incarnation>{incarnation}</Incarnation><Machine><ExpectedState>Started"
        "</ExpectedState><StopRolesDeadlineHint>300000</StopRolesDeadlineHint><LBProbePorts><Port>16001</Port>"
        f"</LBProbePorts><ExpectHealthReport>FALSE</ExpectHealthReport></Machine><Container><ContainerId>{_CONTAINER}"
        f"</ContainerId><RoleInstanceList><RoleInstance><InstanceId>{_INSTANCE}</InstanceId><State>Started</State>"
        f"<Configuration><HostingEnvironmentConfig>{uri('hostingEnvironmentConfig')}</HostingEnvironmentConfig>"
        f"<SharedConfig>{uri('sharedConfig')}</SharedConfig><ExtensionsConfig>{uri('extensionsConfig')}"
        "</ExtensionsConfig><ConfigName>offline.xml</ConfigName></Configuration></RoleInstance></RoleInstanceList>"
        "</Container></GoalState>"
    )


def _extensions(commands: list[dict[str, str]]) -> str:
    """Return the extensions' configuration. All run commands are settings of one handler."""
    plugin = settings = ""
    if commands:
        plugin = (
            f'<Plugin name="{_HANDLER}" version="{_VERSION}" location="{_WIRE}/offline/manifest.xml" state="enabled" '
            'autoUpgrade="false" runAsStartupTask="false" isJson="true" useExactVersion="true" '
            'supportsMultiConfig="true"/>'
        )
        texts = (
            f'<ExtensionRuntimeSettings seqNo="0" name="{command["name"]}" state="enabled">'
            + escape(json.dumps({"runtimeSettings": [{"handlerSettings": {"publicSettings": command}}]}))
            + "</ExtensionRuntimeSettings>"
            for command in commands
        )
        settings = f'<Plugin name="{_HANDLER}" version="{_VERSION}">{"".join(texts)}</Plugin>'
    return (
        '<Extensions version="1.0.0.0"><GuestAgentExtension><GAFamilies/></GuestAgentExtension>'
        f'<StatusUploadBlob statusBlobType="BlockBlob">{_WIRE}/offline/status</StatusUploadBlob>'
        f"<Plugins>{plugin}</Plugins><PluginSettings>{settings}</PluginSettings>"
        '<InVMGoalStateMetaData inSvdSeqNo="1" createdOnTicks="639000000000000000" '
        'activityId="00000000-0000-0000-0000-000000000001" correlationId="00000000-0000-0000-0000-000000000002"/>'
        "</Extensions>"
    )


def _store_status(body: bytes, folder: Path) -> Response:
    new = folder / "status.new"
    new.write_bytes(body)
    new.replace(folder / "status.json")
    return Response(code=201)


def read_command(folder: Path, name: str) -> tuple[str, str] | None:
    """Return the state (`success`, `error`) and the output of a run command, or None if the agent reported none."""
    try:
        found = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return None
    for handler in found["aggregateStatus"]["handlerAggregateStatus"]:
        settings = handler.get("runtimeSettingsStatus") or {}
        status = (settings.get("settingsStatus") or {}).get("status") or {}
        if settings.get("extensionName") == name and status.get("status") in {"success", "error"}:
            return status["status"], status["formattedMessage"]["message"]
    return None


def _xml(text: str) -> Response:
    body = f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    return Response(code=200, body=body, headers={"Content-Type": "text/xml; charset=utf-8"})


def _json(code: int, value: Any) -> Response:
    return Response(code=code, body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def answer_firewall(request: Request, folder: Path, wait: Callable[[float], bool]) -> Response:
    """Return the machine's firewall rules after a line with their digest, when it differs from the one in the path.

    No cloud has this service. It is for the guest's offline-firewall.service.
    """
    file = folder / "firewall"
    while (text := file.read_text() if file.exists() else "") == "" or _etag(text) == request.path.removeprefix("/"):
        if wait(_PERIOD):
            return Response(code=404)
    return Response(code=200, body=f"# {_etag(text)}\n{text}".encode())


ANSWERS: Mapping[str, Callable[[Request, Path, Callable[[float], bool]], Response]] = {
    "gce": answer_gce,
    "imds": answer_imds,
    "wire": answer_wire,
    "hostga": answer_hostga,
    "firewall": answer_firewall,
}


def serve(source: IO[bytes], target: IO[bytes], cloud: str, folder: Path) -> None:
    """Answer the requests of one connection until the guest closes it."""
    ended = select.poll()
    ended.register(source, select.POLLRDHUP)

    def wait(seconds: float) -> bool:
        return bool(ended.poll(seconds * 1000))

    while request := _read(source):
        if cloud != "firewall":
            wait(_delay(folder))
        response = ANSWERS[cloud](request, folder, wait)
        closes = request.headers.get("connection", "").lower() == "close"
        head = [f"HTTP/1.1 {response.code} {_REASONS[response.code]}", f"Content-Length: {len(response.body)}"]
        head += [f"{name}: {value}" for name, value in response.headers.items()]
        head += ["Connection: close"] if closes else []
        target.write("\r\n".join([*head, "", ""]).encode() + response.body)
        target.flush()
        if closes:
            return


def _delay(folder: Path) -> float:
    """Return the seconds that the answer of a slow metadata service takes."""
    file = folder / "delay"
    slow = file.exists() and time.time() - file.stat().st_mtime < _SLOW_SECONDS
    return float(file.read_text()) if slow else 0.0


def _read(source: IO[bytes]) -> Request | None:
    """Return the next request, or None at the end of the connection."""
    method, _, line = source.readline().decode("latin-1").strip().partition(" ")
    target, _, version = line.partition(" ")
    if not version:
        return None
    headers: dict[str, str] = {}
    while field_line := source.readline().decode("latin-1").strip():
        name, _, value = field_line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    found = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(found.query, keep_blank_values=True).items()}
    body = source.read(int(headers.get("content-length") or 0))
    return Request(method=method, path=found.path, query=query, headers=headers, body=body)


if __name__ == "__main__":
    os.umask(0o077)
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1], Path(sys.argv[2]))
