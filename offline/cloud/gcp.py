"""The simulated Google Cloud: ids, names and outputs of its resources, and its data sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from offline.cloud.addressing import Wish, gcp_ranges, gcp_wishes
from offline.cloud.cloud import Function
from offline.cloud.faults import strikes
from offline.cloud.outputs import fingerprint, host_key, private_address, public_address
from offline.cloud.places import gcp_refusal
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.resources import ResourceError
from offline.values import Properties, Value, signature

_API = "https://www.googleapis.com/compute/v1/"
_LINK = re.compile(r"^(?:https://[\w.-]+/(?:compute/)?\w+/)?(projects/[^/]+/.+)$")
_INSTANCE = "gcp:compute/instance:Instance"
_FILESTORE = "gcp:filestore/instance:Instance"
_PLACES = ("zone", "region", "location")
_BOOTING = 2
"""Requests for a new machine's guest attributes or console that come before it has published its host key."""


class Gcp:
    """See Cloud."""

    package = "gcp"
    reserved_addresses = (2, 2)

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_gcp")
        self.rules = Rules(self.package)
        self.functions: Mapping[str, Function] = {
            "gcp:compute/getImage:getImage": self._image,
            "gcp:compute/getZones:getZones": self._zones,
            "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes": self._guest_attributes,
            "gcp:compute/getInstanceSerialPort:getInstanceSerialPort": self._serial_port,
            "gcp:organizations/getClientConfig:getClientConfig": self._client,
            "gcp:organizations/getProject:getProject": self._project,
        }
        self._config: dict[str, str] = {}
        self._labels: Properties = {}

    def configure(self, config: Properties) -> None:
        """See Cloud."""
        self._config = {name: str(config[name]) for name in ("project", "region", "zone") if config.get(name)}
        labels = config.get("defaultLabels")
        # The engine sends nested configuration as JSON.
        given: Value = json.loads(labels) if isinstance(labels, str) else labels
        self._labels = given if isinstance(given, dict) else {}

    def name_property(self, described: Described) -> str:
        """See Cloud."""
        found = described.inputs.get(self.rules.of(described.token).own_name or "name")
        return found.name if found and not found.required else ""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        """See Cloud."""
        return f"{logical}-{suffix}"

    def checked(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud. pulumi-gcp merges the provider's defaultLabels into `labels`."""
        own = inputs.get("labels") or {}
        if "labels" not in described.inputs or not self._labels or not isinstance(own, dict) or signature(own):
            return inputs
        return {**inputs, "labels": {**self._labels, **own}}

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud. Filestore reports a network of the same project by its name.

        GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf gives the bare name, and
        the full id only for a shared VPC; read 2026-11-22.
        """
        networks = inputs.get("networks")
        if described.token != _FILESTORE or not isinstance(networks, list):
            return inputs
        return {**inputs, "networks": [_bare_network(item) for item in networks]}

    def identity(self, described: Described, inputs: Properties) -> str:
        """See Cloud."""
        known = {**inputs, **self.given(described, inputs)}
        values = {name: _last(name, str(value)) for name, value in known.items()}
        return fill_path(self.rules.of(described.token).path or _guessed_path(described), values)

    def given(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud."""
        known: Properties = {}
        for name in ("project", "region", "zone"):
            if name in described.outputs and inputs.get(name) is None:
                known[name] = self._setting(name, inputs)
        if "effectiveLabels" in described.outputs:
            labels = inputs.get("labels")
            known["effectiveLabels"] = {
                **(labels if isinstance(labels, dict) else {}),
                "goog-pulumi-provisioned": "true",
            }
            known["pulumiLabels"] = known["effectiveLabels"]
        return known

    def computed(self, described: Described, identity: str, outputs: Properties, world: World) -> Properties:
        """See Cloud."""
        made = dict(outputs)
        if "selfLink" in described.outputs:
            made["selfLink"] = f"{_API}{identity}"
        if described.token == _INSTANCE:
            return {**made, **_machine(identity, made)}
        if described.token == "gcp:compute/address:Address":  # noqa: S105 - a resource type
            internal = made.get("addressType") == "INTERNAL"
            made.setdefault("address", (private_address if internal else public_address)(identity))
        if described.token == "gcp:serviceaccount/account:Account":  # noqa: S105 - a resource type
            email = identity.rpartition("/")[2]
            made |= {"email": email, "member": f"serviceAccount:{email}", "name": identity}
        if described.token == _FILESTORE:
            made["networks"] = _served(identity, made.get("networks"))
        return made

    def refers(self, text: str) -> str:
        """See Cloud. Other projects' resources (images, reservations shared with us) are taken as given."""
        found = _LINK.match(text)
        mine = f"projects/{self._setting('project', {})}/"
        return found.group(1) if found and found.group(1).startswith(mine) else ""

    def misplaced(self, inputs: Properties) -> str:
        """See Cloud."""
        return gcp_refusal(str(inputs.get("zone") or ""))

    def wishes(self, token: str, inputs: Properties) -> Sequence[Wish]:
        """See Cloud."""
        return tuple(gcp_wishes(inputs)) if token == _INSTANCE else ()

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """See Cloud."""
        return gcp_ranges(inputs)

    def refused(self, path: str) -> str:
        """See Cloud."""
        return f"googleapi: Error 400: Invalid value for field '{path}': it cannot be changed., invalid"

    def _setting(self, name: str, inputs: Properties) -> str:
        found = inputs.get(name) or self._config.get(name)
        if found:
            return str(found)
        zone = str(inputs.get("zone") or self._config.get("zone") or "")
        return zone.rpartition("-")[0] if name == "region" and zone else "offline"

    def _image(self, world: World, arguments: Properties) -> Properties:
        project = str(arguments.get("project") or self._setting("project", {}))
        name = str(arguments.get("name") or f"{arguments.get('family') or 'image'}-offline")
        identity = f"projects/{project}/global/images/{name}"
        return {
            "id": identity,
            "name": name,
            "family": arguments.get("family") or "",
            "project": project,
            "selfLink": f"{_API}{identity}",
            "status": "READY",
            "diskSizeGb": 10,
        }

    def _zones(self, world: World, arguments: Properties) -> Properties:
        region = self._setting("region", arguments)
        names: list[Value] = [f"{region}-{letter}" for letter in "abc"]
        project = self._setting("project", arguments)
        return {"id": f"projects/{project}/regions/{region}", "names": names, "project": project, "region": region}

    def _guest_attributes(self, world: World, arguments: Properties) -> Properties:
        """Return the host key under hostkeys/, or {} while there is none.

        The provider reports a missing machine as "not found", and swallows every error of the request for the
        attributes: terraform-provider-google-beta@93c65b2d60fe,
        services/compute/data_source_google_compute_instance_guest_attributes.go, read 2026-11-22.
        """
        machine = self._instance(world, arguments, arguments.get("name"))
        name = str(arguments.get("name"))
        metadata = machine.inputs.get("metadata")
        enabled = isinstance(metadata, dict) and metadata.get("enable-guest-attributes") == "TRUE"
        booting = world.count(f"attributes of {world.seed(machine.id)}") <= _BOOTING
        if not enabled or booting or not _runs(machine) or strikes(world, "attributes", _INSTANCE, name):
            return {}
        query = str(arguments.get("queryPath") or "")
        kind, key = host_key(world.seed(machine.id)).split()
        found: Value = {"namespace": "hostkeys", "key": kind, "value": key}
        wanted = query.rstrip("/") in ("hostkeys", f"hostkeys/{kind}")
        places: Properties = {name: self._setting(name, arguments) for name in ("project", "zone", "region")}
        answer: Properties = {"id": machine.id, "name": name, "queryPath": query, **places}
        if arguments.get("variableKey"):
            return {**answer, "variableKey": arguments["variableKey"], "variableValue": key}
        return {**answer, "queryValues": [found] if wanted else []}

    def _serial_port(self, world: World, arguments: Properties) -> Properties:
        """Return what a machine wrote to its console.

        Errors are the API's own: data_source_google_compute_instance_serial_port.go, same revision as above.
        """
        machine = self._instance(world, arguments, arguments.get("instance"))
        name = str(arguments.get("instance"))
        if not _runs(machine):
            raise ResourceError(f"googleapi: Error 400: The resource '{machine.id}' is not ready, resourceNotReady")
        booting = world.count(f"console of {world.seed(machine.id)}") <= _BOOTING
        silent = booting or bool(strikes(world, "console", _INSTANCE, name))
        line = "" if silent else f"trainyard-hostkey: {host_key(world.seed(machine.id))}\r\n"
        return {"id": machine.id, "instance": name, "port": 1.0, "contents": f"[    0.0] offline\r\n{line}"}

    def _instance(self, world: World, arguments: Properties, name: Value) -> Record:
        project, zone = (self._setting(place, arguments) for place in ("project", "zone"))
        identity = f"projects/{project}/zones/{zone}/instances/{name}"
        machine = world.find(identity)
        if machine is None:
            raise ResourceError(f"{identity} not found")
        return machine

    def _client(self, world: World, arguments: Properties) -> Properties:
        names = ("project", "region", "zone")
        return {"id": "offline", "accessToken": "offline", **{name: self._setting(name, {}) for name in names}}

    def _project(self, world: World, arguments: Properties) -> Properties:
        project = str(arguments.get("projectId") or self._setting("project", {}))
        return {"id": f"projects/{project}", "projectId": project, "number": "000000000000", "name": "offline"}


def _last(name: str, value: str) -> str:
    """Zones, regions and the like may be given as links; ids use their last part."""
    return value.rpartition("/")[2] if name in (*_PLACES, "router") else value


def _guessed_path(described: Described) -> str:
    """Make up a resource path out of where the type lives."""
    kind = described.token.rpartition(":")[2]
    collection = f"{kind[0].lower()}{kind[1:]}s"
    place = next((name for name in _PLACES if name in described.inputs), "")
    module = described.token.split(":")[1].partition("/")[0]
    middle = f"{place}s/{{{place}}}/" if place else "global/" if module == "compute" else ""
    return f"projects/{{project}}/{middle}{collection}/{{name}}"


def _runs(machine: Record) -> bool:
    return machine.outputs.get("currentStatus") == "RUNNING"


def _machine(identity: str, outputs: Properties) -> Properties:
    interfaces = outputs.get("networkInterfaces")
    return {
        "currentStatus": outputs.get("currentStatus") or "RUNNING",
        "creationTimestamp": outputs.get("creationTimestamp") or datetime.now(UTC).isoformat(timespec="milliseconds"),
        "cpuPlatform": "offline",
        "networkInterfaces": [
            _interface(f"{identity}/{index}", index, item) if isinstance(item, dict) else item
            for index, item in enumerate(interfaces if isinstance(interfaces, list) else [])
        ],
    }


def _interface(seed: str, index: int, given: Properties) -> Value:
    access = given.get("accessConfigs")
    made: Properties = {
        "name": f"nic{index}",
        "networkIp": private_address(seed),
        "fingerprint": fingerprint(seed),
        **given,
    }
    if isinstance(access, list):
        made["accessConfigs"] = [
            {"networkTier": "PREMIUM", **item, "natIp": item.get("natIp") or public_address(seed)}
            if isinstance(item, dict)
            else item
            for item in access
        ]
    return made


def _bare_network(item: Value) -> Value:
    if not (isinstance(item, dict) and isinstance(item.get("network"), str)):
        return item
    return {**item, "network": str(item["network"]).rpartition("/")[2]}


def _served(identity: str, networks: Value) -> Value:
    return [
        {"ipAddresses": [private_address(identity)], **item} if isinstance(item, dict) else item
        for item in (networks if isinstance(networks, list) else [])
    ]
