"""Google's REST API (Compute, Filestore, IAM) on loopback: the official plugin's way into the simulated Google Cloud.

A request becomes an operation of Maker, like the engine's request to this project's plugin. Therefore, both plugins
have the same resources, refusals and faults, and this module only converts names and formats. An operation has ended
when its request is answered. The formats follow terraform-provider-google-beta@3dc173a39774:google-beta/services/
{compute,filestore,resourcemanager} (read 2026-11-28).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from offline.cloud.gcp import API, BOOT_DISK, FILESTORE, FIREWALL, INSTANCE, Gcp
from offline.cloud.making import Made, Maker
from offline.cloud.outputs import fingerprint, number
from offline.cloud.rules import covered
from offline.cloud.world import Record, World
from offline.protocol import EngineLog, Operation, ResourceError, Stop
from offline.values import changes

Json = dict[str, Any]

_PATH = re.compile(
    r"(?P<place>projects/(?P<project>[^/:]+)(?:/global|/(?:zones|regions|locations)/[^/:]+)?)"
    r"(?:/(?P<collection>\w+)(?:/(?P<name>[^/:]+))?)?(?:[/:](?P<method>\w+))?"
)
_SCOPES = ("global", "zone", "region")
"""Parts of a path that only Compute's resources have. The other services report the path as the name."""
_NAT = "gcp:compute/routerNat:RouterNat"
_STATUS = re.compile(r"(?:googleapi: Error )?(\d{3})\b")
"""The beginning of a refusal that contains its HTTP status."""


@dataclass(frozen=True)
class _Kind:
    token: str
    defaults: Json = field(default_factory=dict)
    """Fields that the API adds to a resource."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Mapping from the API's names of properties, at any depth, to the SDK's. Most names are the same."""


_KINDS: Mapping[str, _Kind] = {
    "networks": _Kind("gcp:compute/network:Network", {"routingConfig": {"routingMode": "REGIONAL"}}),
    "subnetworks": _Kind(
        "gcp:compute/subnetwork:Subnetwork",
        {"purpose": "PRIVATE", "stackType": "IPV4_ONLY", "privateIpGoogleAccess": False},
    ),
    "firewalls": _Kind(
        FIREWALL,
        {"priority": 1000, "direction": "INGRESS", "disabled": False, "logConfig": {"enable": False}},
        {"allowed": "allows", "denied": "denies", "IPProtocol": "protocol"},
    ),
    "routers": _Kind("gcp:compute/router:Router"),
    "addresses": _Kind(
        "gcp:compute/address:Address",
        {"addressType": "EXTERNAL", "networkTier": "PREMIUM", "status": "RESERVED", "ipVersion": "IPV4"},
    ),
    "disks": _Kind(
        "gcp:compute/disk:Disk",
        {"status": "READY", "physicalBlockSizeBytes": "4096", "accessMode": "READ_WRITE_SINGLE"},
        {"sizeGb": "size"},
    ),
    "resourcePolicies": _Kind("gcp:compute/resourcePolicy:ResourcePolicy", {"status": "READY"}),
    "instances": _Kind(
        INSTANCE,
        {"deletionProtection": False, "canIpForward": False},
        {"networkIP": "networkIp", "natIP": "natIp", "serviceAccounts": "serviceAccount", "status": "currentStatus"},
    ),
    "serviceAccounts": _Kind("gcp:serviceaccount/account:Account", {"uniqueId": "1" * 21}),
    "roles": _Kind("gcp:projects/iAMCustomRole:IAMCustomRole", {}, {"includedPermissions": "permissions"}),
}
_SHARE = _Kind(FILESTORE, {"protocol": "NFS_V3", "state": "READY", "createTime": "2026-01-01T00:00:00Z"})
_SCHEDULING = {
    "automaticRestart": True,
    "onHostMaintenance": "MIGRATE",
    "preemptible": False,
    "provisioningModel": "STANDARD",
}
_BOOT = {"sourceImage": "image", "diskSizeGb": "size", "sizeGb": "size", "diskType": "type"}
"""Names of a boot disk's properties, as in _Kind.names."""
_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("setLabels", "setMachineType", "resize", "expandIpCidrRange"), ""),
    "setMetadata": "metadata",
    "setTags": "tags",
    "setScheduling": "scheduling",
    "setServiceAccount": "serviceAccounts",
}
"""Methods that set fields: the field that the body contains, or "" if the body contains the fields themselves."""


class ApiError(Exception):
    """A refusal with an HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Request:
    method: str
    service: str
    """The first part of the URL's path: compute, file, iam or crm (Resource Manager)."""
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)


class GoogleApi:
    """Google's API for the resources of a simulated cloud."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cloud = Gcp()

    def answer(self, request: Request) -> Json:
        """Perform a request. Raises ApiError or ResourceError if the cloud refuses it."""
        # "-" stands for the project in a service account's email address.
        path = re.sub(r"^projects/-/(.*@([^.]+)\.iam.*)$", r"projects/\2/\1", request.path)
        found = _PATH.fullmatch(path)
        if found is None:
            raise ApiError(501, f"{path} is not simulated")
        self._cloud.configure({"project": found["project"]})
        collection, method = found["collection"] or "", found["method"] or ""
        kind = _SHARE if request.service == "file" else _KINDS.get(collection)
        if method.endswith("IamPolicy"):
            return self._policy(found, request.body if method == "setIamPolicy" else None)
        if collection == "operations":
            return _done(path, {})
        if kind is not None:
            return self._resource(kind, found, request) if found["name"] else self._insert(kind, found, request)
        if request.method != "GET":
            raise ApiError(501, f"{request.method} {path} is not simulated")
        # Images, machine types and the like: all names exist.
        return {"name": _last(path), "selfLink": f"{API}{path}", "status": "UP", "projectId": _last(path)}

    def _insert(self, kind: _Kind, path: re.Match[str], request: Request) -> Json:
        scope = path["place"].split("/")[2:]
        inputs = {
            **_stored(kind, request.body),
            **({scope[0].removesuffix("s"): scope[1]} if len(scope) > 1 else {}),
            **({"name": request.query["instanceId"]} if kind is _SHARE else {}),
            "project": path["project"],
        }
        name = str(inputs.get("name") or inputs.get("accountId") or inputs.get("roleId"))
        identity, _ = self._maker(kind.token, name).create(inputs, may_adopt=False)
        return _done(identity, self._representation(kind, identity))

    def _resource(self, kind: _Kind, path: re.Match[str], request: Request) -> Json:
        identity, method = f"{path['place']}/{path['collection']}/{path['name']}", path["method"] or ""
        if BOOT_DISK in identity:
            return self._boot_disk(identity, request)
        if method in ("getGuestAttributes", "serialPort"):
            return self._published(identity, method, request.query)
        maker = self._maker(kind.token, _last(identity))
        if request.method == "GET":
            maker.read(identity, Made())
            return self._representation(kind, identity)
        record = self._find(identity)
        if request.method == "DELETE":
            maker.delete(identity)
            return _done(identity, {})
        if "nats" in request.body:
            where = {"router": _last(identity), "region": record.inputs["region"], "project": identity.split("/")[1]}
            self._set(_NAT, self._nats(identity), [{**nat, **where} for nat in request.body.pop("nats")])
        self._change(record, _changed(kind, record, method, request), {"start": True, "stop": False}.get(method))
        return _done(identity, self._representation(kind, identity))

    def _change(self, record: Record, inputs: Json, runs: bool | None = None) -> None:
        stop = self._cloud.rules.of(record.token).stop
        path = next((path for path in changes(record.inputs, inputs) if covered(path, stop)), None)
        if path and record.outputs.get("currentStatus") == "RUNNING":
            raise ApiError(400, f"{record.id}: {path} can be changed only while the machine is stopped")
        maker = self._maker(record.token, _last(record.id))
        maker.change(record.id, inputs, Made(record.inputs, record.outputs), runs=runs)

    def _set(self, token: str, known: Sequence[Record], wanted: Sequence[Json]) -> None:
        """Create, change and delete resources that the API treats as parts of another resource."""
        described = self._cloud.sdk.describe(token)
        left = {self._cloud.identity(described, inputs): inputs for inputs in wanted}
        for record in known:
            inputs = left.pop(record.id, None)
            if inputs is None:
                self._maker(token, _last(record.id)).delete(record.id)
            elif inputs != record.inputs:
                self._change(record, inputs)
        for identity, inputs in left.items():
            self._maker(token, _last(identity)).create(inputs, may_adopt=False)

    def _nats(self, router: str) -> Sequence[Record]:
        return [found for found in self._world.linked(router) if found.token == _NAT]

    def _policy(self, path: re.Match[str], body: Json | None) -> Json:
        """Return the IAM policy of a project, service account or instance, or set the one in `body`."""
        where: Json
        match path["collection"]:
            case None:
                token, where = "gcp:projects/iAMMember:IAMMember", {"project": path["project"]}
            case "serviceAccounts":
                token = "gcp:serviceaccount/iAMMember:IAMMember"  # noqa: S105 - a resource type
                where = {"serviceAccountId": f"{path['place']}/serviceAccounts/{path['name']}"}
            case _:
                token = "gcp:compute/instanceIAMMember:InstanceIAMMember"  # noqa: S105 - a resource type
                where = {"project": path["project"], "zone": _last(path["place"]), "instanceName": path["name"]}
        known = [
            found for found in self._world.records() if found.token == token and where.items() <= found.inputs.items()
        ]
        if body is not None:
            bindings = body["policy"].get("bindings", ())
            wanted = [{**where, "role": one["role"], "member": who} for one in bindings for who in one["members"]]
            self._set(token, known, wanted)
            return dict(body["policy"])
        members: dict[str, list[Any]] = {}
        for found in known:
            members.setdefault(str(found.inputs["role"]), []).append(found.inputs["member"])
        return {
            "version": 1,
            "etag": "1",
            "bindings": [{"role": role, "members": sorted(members[role])} for role in members],
        }

    def _boot_disk(self, identity: str, request: Request) -> Json:
        """Read or change the boot disk of a machine, which is not a resource of its own."""
        machine = self._find(identity.replace(BOOT_DISK, "/instances/"))
        disk: Json = machine.inputs["bootDisk"]  # type: ignore[assignment]
        asked = disk.get("initializeParams") or {}
        if request.method == "GET":
            facts = {"size": 10, "type": f"{API}{identity.partition('/disks/')[0]}/diskTypes/pd-standard", **asked}
            kind = _KINDS["disks"]
            answer = {"sourceImage": facts.pop("image", None), **_renamed(facts, _inverse(kind.names))}
            return {**kind.defaults, **self._common(identity), **answer, "sizeGb": _gib(answer["sizeGb"])}
        body = _renamed({name: request.body[name] for name in ("sizeGb", "labels") if name in request.body}, _BOOT)
        self._change(machine, {**machine.inputs, "bootDisk": {**disk, "initializeParams": {**asked, **body}}})
        return _done(identity, {})

    def _published(self, identity: str, method: str, query: Mapping[str, str]) -> Json:
        where: Json = dict(zip(("project", "zone", "name"), identity.split("/")[1::2], strict=True))
        if method == "serialPort":
            token = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"  # noqa: S105 - a function
            return self._cloud.functions[token](self._world, {**where, "instance": where["name"]})
        token = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"  # noqa: S105 - a function
        found = self._cloud.functions[token](self._world, {**where, "variableKey": query["variableKey"]})
        if not found:
            raise ApiError(404, f"The resource '{query['variableKey']}' of type 'Guest Attribute' was not found.")
        return found

    def _representation(self, kind: _Kind, identity: str) -> Json:
        """Return a resource as the API describes it."""
        record = self._find(identity)
        described = self._cloud.sdk.describe(kind.token)
        kept: Json = {
            name: record.outputs[name] for name in ("currentStatus", "creationTimestamp") if name in record.outputs
        }
        facts = self._cloud.computed(described, identity, {**record.inputs, **kept})
        answer: Json = _renamed(self._cloud.reported(described, facts), _inverse(kind.names))
        answer = {**kind.defaults, **answer, **self._common(identity)}
        match kind.token:
            case "gcp:compute/instance:Instance":
                self._complete_instance(record, answer)
            case "gcp:compute/disk:Disk":
                answer["sizeGb"] = _gib(answer.get("sizeGb") or 10)
            case "gcp:compute/router:Router":
                answer["nats"] = [dict(found.inputs) for found in self._nats(identity)]
            case "gcp:filestore/instance:Instance":
                networks = [{"reservedIpRange": "198.51.100.0/29", **network} for network in answer["networks"]]
                answer |= {"fileShares": [answer["fileShares"]], "networks": networks}
        return answer

    def _common(self, identity: str) -> Json:
        place = "/".join(identity.split("/")[:4])
        scope = place.split("/")[2].removesuffix("s")
        seed = self._world.seed(identity)
        return {
            "id": str(number(seed) >> 1),  # the API's ids are below 2^63
            "name": _last(identity) if scope in _SCOPES else identity,
            "projectId": identity.split("/")[1],
            "selfLink": f"{API}{identity}",
            "fingerprint": fingerprint(seed),
            "labelFingerprint": fingerprint(seed),
            **({scope: f"{API}{place}"} if scope in ("zone", "region") else {}),
        }

    def _complete_instance(self, record: Record, answer: Json) -> None:
        """Convert an instance's properties, and add what the API adds to a new machine."""
        boot, attached = answer.pop("bootDisk"), answer.pop("attachedDisks", ())
        source = f"{API}{record.id.replace('/instances/', BOOT_DISK)}"
        boot = {name: value for name, value in boot.items() if name != "initializeParams"}
        disks = [{**boot, "boot": True, "source": source}, *attached, *answer.pop("scratchDisks", ())]
        added = {"type": "PERSISTENT", "mode": "READ_WRITE", "interface": "SCSI"}
        answer["disks"] = [
            {**added, "deviceName": f"persistent-disk-{index}", **disk, "index": index}
            for index, disk in enumerate(disks)
        ]
        for card in answer["networkInterfaces"]:
            subnet = self._world.find(self._cloud.refers(str(card.get("subnetwork"))))
            card.update({"stackType": "IPV4_ONLY", **card, "network": subnet and subnet.inputs["network"]})
            for access in card.get("accessConfigs", ()):
                access.update(name="external-nat", type="ONE_TO_ONE_NAT")
        stamp = answer["fingerprint"]
        items = [{"key": key, "value": value} for key, value in answer.get("metadata", {}).items()]
        answer |= {
            "metadata": {"items": items, "fingerprint": stamp},
            "tags": {"items": answer.get("tags", []), "fingerprint": stamp},
            "scheduling": _SCHEDULING | answer.get("scheduling", {}),
            "lastStartTimestamp": answer["creationTimestamp"],
        }

    def _find(self, identity: str) -> Record:
        record = self._world.find(identity)
        if record is None:
            raise ApiError(404, f"The resource '{identity}' was not found")
        return record

    def _maker(self, token: str, name: str) -> Maker:
        urn = f"urn:pulumi:{self._world.folder.name}::rest::{token}::{name}"
        operation = Operation(urn, 0, 0, EngineLog(""), Stop())
        return Maker(self._cloud, self._world, self._cloud.sdk.describe(token), operation)


def _stored(kind: _Kind, body: Json) -> Json:
    """Return the properties in a request's body as the simulated cloud stores them."""
    given = {name: value for name, value in body.items() if name not in ("fingerprint", "labelFingerprint")}
    for wrapper in ("serviceAccount", "role"):
        given |= given.pop(wrapper, {})
    found: Json = _linked(_renamed(given, kind.names))
    if kind is _SHARE and "fileShares" in found:
        (found["fileShares"],) = found["fileShares"]
    if kind.token != INSTANCE:
        return found
    if "metadata" in found:
        found["metadata"] = {one["key"]: one["value"] for one in found["metadata"].get("items", ())}
    if "tags" in found:
        found["tags"] = found["tags"].get("items", [])
    for disk in found.pop("disks", ()):
        if disk.get("boot"):
            found["bootDisk"] = {**disk, "initializeParams": _renamed(disk.get("initializeParams", {}), _BOOT)}
        else:
            of = "scratchDisks" if disk.get("type") == "SCRATCH" else "attachedDisks"
            found[of] = [*found.get(of, ()), disk]
    return found


def _changed(kind: _Kind, record: Record, method: str, request: Request) -> Json:
    """Return a resource's inputs after a request. Raises ApiError if the method is not simulated."""
    inputs, body = dict[str, Any](record.inputs), request.body
    match method:
        case "start" | "stop" | "setSecurityPolicy":  # the stacks set no policy
            pass
        case "addResourcePolicies":
            inputs["resourcePolicies"] = [*inputs.get("resourcePolicies", ()), *_linked(body)["resourcePolicies"]]
        case "removeResourcePolicies":
            inputs["resourcePolicies"] = []
        case "attachDisk":
            inputs["attachedDisks"] = [*inputs.get("attachedDisks", ()), _linked(body)]
        case "detachDisk":
            name = request.query["deviceName"]
            inputs["attachedDisks"] = [disk for disk in inputs["attachedDisks"] if disk.get("deviceName") != name]
        case "addAccessConfig" | "deleteAccessConfig":
            cards = inputs["networkInterfaces"] = [dict(card) for card in inputs["networkInterfaces"]]
            card = cards[int(request.query["networkInterface"].removeprefix("nic"))]
            card["accessConfigs"] = [_renamed(body, kind.names)] if method.startswith("add") else []
        case _ if method and method not in _FIELDS:
            raise ApiError(501, f"the method {method} is not simulated")
        case _:
            part = _FIELDS.get(method)
            value = [body] if part == "serviceAccounts" else body
            inputs |= _stored(kind, {part: value} if part else body)
    return inputs


def _done(path: str, answer: Json) -> Json:
    """Return the answer to a request that has changed a resource: an operation, but for IAM the resource itself."""
    parts = path.split("/")
    if parts[2] in ("serviceAccounts", "roles"):
        return answer
    place = "/".join(parts[: 4 if parts[2] != "global" else 3])
    if parts[2] == "locations":
        return {"name": f"{place}/operations/1", "done": True, "response": answer}
    return {
        "kind": "compute#operation",
        "name": "operation-1",
        "status": "DONE",
        "progress": 100,
        "selfLink": f"{API}{place}/operations/operation-1",
        "targetLink": f"{API}{path}",
        **({parts[2].removesuffix("s"): f"{API}{place}"} if parts[2] != "global" else {}),
    }


def _linked(value: Any) -> Any:
    """Return a body as the API stores it: relative paths become links."""
    if isinstance(value, dict):
        return {name: _linked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_linked(item) for item in value]
    if isinstance(value, str) and (found := re.fullmatch(r"(?:https://[\w.]+/compute/\w+/)?(projects/\S+)", value)):
        return f"{API}{found[1]}"
    return value


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(name, name): _renamed(item, names) for name, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else value


def _inverse(names: Mapping[str, str]) -> Mapping[str, str]:
    return {sdk: api for api, sdk in names.items()}


def _gib(size: Any) -> str:
    """Return a size in the API's format for 64-bit integers."""
    return str(int(float(size)))


def _last(path: str) -> str:
    return path.rpartition("/")[2]


@contextmanager
def serving(world: World) -> Iterator[tuple[str, list[str]]]:
    """Serve the API on loopback. Yields the URL and a list, to which each request and its HTTP status are appended.

    The server is also a proxy that refuses all hosts.
    """
    api, requests = GoogleApi(world), list[str]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            url = urlsplit(self.path)
            _, service, _, path = url.path.split("/", 3)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            try:
                status, answer = 200, api.answer(Request(self.command, service, path, query, body))
            except (ApiError, ResourceError) as error:
                status = error.status if isinstance(error, ApiError) else _status(str(error))
                answer = {"error": {"code": status, "message": str(error)}}
            requests.append(f"{self.command} {path} {status}")
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

        def do_CONNECT(self) -> None:
            requests.append(f"CONNECT {self.path} 403")
            self.send_error(403)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def _status(refusal: str) -> int:
    found = _STATUS.match(refusal)
    return int(found[1]) if found else 404 if refusal.endswith("not found") else 400
