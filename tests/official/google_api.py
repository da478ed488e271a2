"""A small Google REST API on loopback (Compute, Filestore, IAM), to which the official provider sends its requests.

Each resource is the JSON object that the provider has sent, with the fields that the API adds. Operations end at once.
Names, addresses and host keys are those of the simulated cloud in `offline`. The format of requests and answers follows
terraform-provider-google-beta@3dc173a39774:google-beta/services/{compute,filestore,resourcemanager} (read 2026-11-24).
What Google refuses is not simulated, except for missing resources.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from offline.cloud.outputs import fingerprint, host_key, private_address, public_address

Json = dict[str, Any]

_LINK = "https://www.googleapis.com/compute/v1/"
_CATALOG = ("zones", "regions", "machineTypes", "diskTypes", "images", "family", "acceleratorTypes", "licenses")
"""Collections that contain every name."""
_DEFAULTS: Mapping[str, Json] = {
    "networks": {"routingConfig": {"routingMode": "REGIONAL"}},
    "subnetworks": {"purpose": "PRIVATE", "stackType": "IPV4_ONLY", "privateIpGoogleAccess": False},
    "firewalls": {"priority": 1000, "direction": "INGRESS", "disabled": False, "logConfig": {"enable": False}},
    "addresses": {"addressType": "EXTERNAL", "networkTier": "PREMIUM", "status": "RESERVED", "ipVersion": "IPV4"},
    "disks": {"status": "READY", "physicalBlockSizeBytes": "4096", "accessMode": "READ_WRITE_SINGLE"},
    "resourcePolicies": {"status": "READY"},
    "instances": {"status": "RUNNING", "cpuPlatform": "offline", "deletionProtection": False, "canIpForward": False},
}
_SCHEDULING = {
    "automaticRestart": True,
    "onHostMaintenance": "MIGRATE",
    "preemptible": False,
    "provisioningModel": "STANDARD",
}
_FIELDS: Mapping[str, str | None] = {
    **dict.fromkeys(("setLabels", "setMachineType", "setMinCpuPlatform", "setServiceAccount", "resize")),
    "setMetadata": "metadata",
    "setTags": "tags",
    "setScheduling": "scheduling",
    "updateShieldedInstanceConfig": "shieldedInstanceConfig",
}
"""Methods that set fields: the field that the body contains, or None if the body contains the fields themselves."""


class ApiError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class GoogleApi:
    """The resources of a project by path ("projects/P/zones/Z/instances/NAME")."""

    def __init__(self) -> None:
        self.resources: dict[str, Json] = {}
        self._made = 0
        self._lock = threading.Lock()

    def answer(self, method: str, service: str, path: str, query: Mapping[str, str], body: Json) -> Json:
        with self._lock:
            # "-" stands for the project in a service account's email address.
            path = re.sub(r"^projects/-/(.*@([^.]+)\.iam.*)$", r"projects/\2/\1", path)
            return self._filestore(method, path, query, body) if service == "file" else self._rest(method, path, body)

    def _rest(self, method: str, path: str, body: Json) -> Json:
        folder, _, last = path.rpartition("/")
        if "/operations/" in path:
            return self._done(path)
        if last == "getGuestAttributes":
            return {"variableKey": "hostkeys/ssh-ed25519", "variableValue": self._key(folder)}
        if last == "serialPort":
            return {"contents": f"trainyard-hostkey: {self._key(folder)}\r\n"}
        if method == "GET":
            return self._get(path)
        if method == "POST":
            return self._post(path, body)
        found = self._find(path)
        if method == "DELETE":
            disks = [disk["source"].removeprefix(_LINK) for disk in found.get("disks", ()) if disk.get("autoDelete")]
            for name in (path, *disks):
                del self.resources[name]
        elif last in _FIELDS:
            self._change(found, last, body)
        else:
            found.update(_linked(body))
        return found if "serviceAccounts" in path else self._done(path)

    def _post(self, path: str, body: Json) -> Json:
        folder, _, method = path.rpartition("/")
        if folder not in self.resources:
            return self._insert(path, body)
        self._change(self.resources[folder], method, body)
        return self._done(folder)

    def _get(self, path: str) -> Json:
        collection = path.split("/")[-2]
        if path not in self.resources and (collection in _CATALOG or path.count("/") == 1):
            name = path.rpartition("/")[2]
            return {"name": name, "selfLink": f"{_LINK}{path}", "status": "UP", "diskSizeGb": "10", "projectId": name}
        return self._find(path)

    def _find(self, path: str) -> Json:
        if path not in self.resources:
            raise ApiError(404, f"The resource '{path}' was not found")
        return self.resources[path]

    def _key(self, path: str) -> str:
        return host_key(f"{path} {self._find(path)['id']}")

    def _insert(self, folder: str, body: Json) -> Json:
        collection = folder.rpartition("/")[2]
        if collection == "serviceAccounts":
            return self._account(folder, body)
        path = f"{folder}/{body['name']}"
        if path in self.resources:
            raise ApiError(409, f"The resource '{path}' already exists")
        made = {**_DEFAULTS.get(collection, {}), **_linked(body), **self._identity(path)}
        if collection == "instances":
            self._instance(path, made)
        elif collection == "addresses":
            made.setdefault("address", public_address(path))
        elif collection == "disks":
            made["sizeGb"] = str(made.get("sizeGb") or 10)
        self.resources[path] = made
        return self._done(path)

    def _identity(self, path: str) -> Json:
        self._made += 1
        place = "/".join(path.split("/")[:4])
        kind = place.split("/")[2].removesuffix("s")
        return {
            "id": str(10**18 + self._made),
            "creationTimestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "selfLink": f"{_LINK}{path}",
            "fingerprint": fingerprint(path),
            "labelFingerprint": fingerprint(path),
            **({kind: f"{_LINK}{place}"} if kind in ("zone", "region") else {}),
        }

    def _instance(self, path: str, made: Json) -> None:
        """Add what the API adds to a new machine, and create its boot disk."""
        zone = path.partition("/instances/")[0]
        for index, disk in enumerate(made.get("disks", ())):
            if "initializeParams" in disk:
                asked = disk.pop("initializeParams")
                name = f"{zone}/disks/{made['name']}"
                size = str(asked.get("diskSizeGb") or 10)
                disk["source"] = f"{_LINK}{name}"
                self.resources[name] = {
                    **_DEFAULTS["disks"],
                    **self._identity(name),
                    "name": made["name"],
                    "sizeGb": size,
                    "type": asked.get("diskType", f"{_LINK}{zone}/diskTypes/pd-standard"),
                    "sourceImage": asked.get("sourceImage"),
                    "labels": asked.get("labels", {}),
                }
            disk.update(index=index, type="PERSISTENT", mode=disk.get("mode", "READ_WRITE"), interface="SCSI")
            disk.setdefault("deviceName", f"persistent-disk-{index}")
        for index, card in enumerate(made.get("networkInterfaces", ())):
            subnet = self._find(card["subnetwork"].removeprefix(_LINK))
            card.update(name=f"nic{index}", fingerprint=fingerprint(f"{path}/{index}"), network=subnet["network"])
            card.setdefault("networkIP", private_address(f"{path}/{index}"))
            card.setdefault("stackType", "IPV4_ONLY")
            for access in card.get("accessConfigs", ()):
                access.setdefault("natIP", public_address(f"{path}/{index}"))
                access.update(name="external-nat", type="ONE_TO_ONE_NAT", networkTier="PREMIUM")
        made["scheduling"] = _SCHEDULING | made.get("scheduling", {})
        for name in ("metadata", "tags"):
            made[name] = {**made.get(name, {}), "fingerprint": fingerprint(path)}
        made["lastStartTimestamp"] = made["creationTimestamp"]

    def _change(self, found: Json, method: str, body: Json) -> None:
        """Perform a method of a resource. Raises ApiError."""
        if method in ("start", "stop"):
            found["status"] = "RUNNING" if method == "start" else "TERMINATED"
        elif method == "addResourcePolicies":
            found["resourcePolicies"] = [*found.get("resourcePolicies", ()), *_linked(body)["resourcePolicies"]]
        elif method == "removeResourcePolicies":
            found["resourcePolicies"] = []
        elif method in _FIELDS:
            field, value = _FIELDS[method], _linked(body)
            found.update({field: value} if field else value)
        else:
            raise ApiError(501, f"the method {method} is not simulated")

    def _account(self, folder: str, body: Json) -> Json:
        project = folder.split("/")[1]
        email = f"{body['accountId']}@{project}.iam.gserviceaccount.com"
        made = {"name": f"{folder}/{email}", "email": email, "projectId": project, "uniqueId": "1" * 21}
        self.resources[made["name"]] = made | body.get("serviceAccount", {})
        return self.resources[made["name"]]

    def _filestore(self, method: str, path: str, query: Mapping[str, str], body: Json) -> Json:
        if "/operations/" in path:
            return {"name": path, "done": True, "response": {}}
        if method == "POST":
            path = f"{path}/{query['instanceId']}"
            made = {**body, "name": path, "state": "READY", "createTime": "2026-01-01T00:00:00Z", "etag": "1"}
            for item in made["networks"]:
                # Google reports a network in the same project by its name: see offline/cloud/gcp.py, `reported`.
                item["network"] = item["network"].rpartition("/")[2]
                item.update(ipAddresses=[private_address(path)], connectMode="DIRECT_PEERING")
                item.setdefault("reservedIpRange", "198.51.100.0/29")
            self.resources[path] = {"protocol": "NFS_V3", **made}
        elif method == "GET":
            return self._find(path)
        elif method == "DELETE":
            del self.resources[self._find(path)["name"]]
        else:
            self._find(path).update(body)
        place = "/".join(path.split("/")[:4])
        return {"name": f"{place}/operations/1", "done": True, "response": self.resources.get(path, {})}

    def _done(self, path: str) -> Json:
        parts = path.split("/")
        place = "/".join(parts[: 4 if parts[2] in ("zones", "regions") else 3])
        scope = {parts[2].removesuffix("s"): f"{_LINK}{place}"} if parts[2] in ("zones", "regions") else {}
        return {
            "kind": "compute#operation",
            "name": "operation-1",
            "status": "DONE",
            "progress": 100,
            "selfLink": f"{_LINK}{place}/operations/operation-1",
            "targetLink": f"{_LINK}{path}",
            **scope,
        }


def _linked(value: Any) -> Any:
    """Return a body as the API stores it: relative paths become links."""
    if isinstance(value, dict):
        return {name: _linked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_linked(item) for item in value]
    if isinstance(value, str) and (found := re.fullmatch(r"(?:https://[\w.]+/compute/\w+/)?(projects/\S+)", value)):
        return f"{_LINK}{found[1]}"
    return value


@contextmanager
def serving() -> Iterator[tuple[GoogleApi, str]]:
    """Serve an empty API on loopback. Yields the API and its URL. The server is also a proxy that refuses all hosts."""
    api = GoogleApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            url = urlsplit(self.path)
            _, service, _, path = url.path.split("/", 3)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            try:
                status, answer = 200, api.answer(self.command, service, path, query, body)
            except ApiError as error:
                status, answer = error.status, {"error": {"code": error.status, "message": str(error)}}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

        def do_CONNECT(self) -> None:
            self.send_error(403)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
