"""Simulated Google Cloud: its resource IDs, names, outputs and data sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Interface
from typing import Any

from components.catalog import Machine, fabrics, machines
from offline.boot.description import (
    NOTICE,
    PORTMAPPER,
    Card,
    CloudDisk,
    CloudMachine,
    Export,
    gpus_of,
    nfs_server,
)
from offline.boot.firewall import google
from offline.boot.machine import disk_file, hypervisor, is_wanted
from offline.cloud.cloud import AddressRequest, Cloud, catalog
from offline.cloud.faults import EVICTED, is_announced, notice
from offline.cloud.outputs import fingerprint, host_key, private_address, public_address
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties, Value, objects, signature

API = "https://www.googleapis.com/compute/v1/"
_LINK = re.compile(r"^(?:https://[\w.-]+/(?:compute/)?\w+/)?(projects/[^/]+/.+)$")
INSTANCE = "gcp:compute/instance:Instance"
FIREWALL = "gcp:compute/firewall:Firewall"
FILESTORE = "gcp:filestore/instance:Instance"
_BAKE = "trainyard/bake"
"""The guest attribute that contains a bake's result."""
BOOT_DISK = "/disks/offline-boot-"
"""A boot disk's ID is its machine's ID with this text in place of `/instances/`."""
_LOCATIONS = ("zone", "region", "location")
_GIVEN = frozenset({"zones", "regions", "machineTypes", "diskTypes", "acceleratorTypes", "networkProfiles"})
"""Collections that exist in every project, so that their members are not resources of the stack."""
_BOOTING = 2
"""A new machine is still booting during this many requests of each kind (guest attributes, console output, state). The
machine publishes its host key only afterwards."""


class Gcp(Cloud):
    package = "gcp"
    reserved_addresses = (2, 2)
    filters = frozenset({FIREWALL, INSTANCE})

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_gcp")
        self.rules = Rules(self.package)
        self.functions = {
            "gcp:compute/getInstance:getInstance": self._machine,
            "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes": self._guest_attributes,
            "gcp:compute/getInstanceSerialPort:getInstanceSerialPort": self._serial_port,
        }
        self._config: dict[str, str] = {}
        self._labels: Properties = {}

    def configure(self, config: Properties) -> None:
        self._config = {name: str(config[name]) for name in ("project", "region", "zone") if config.get(name)}
        labels = config.get("defaultLabels")
        # The engine sends nested configuration as JSON.
        given: Value = json.loads(labels) if isinstance(labels, str) else labels
        self._labels = given if isinstance(given, dict) else {}

    def name_property(self, described: Described) -> str:
        found = described.inputs.get(self.rules.of(described.token).own_name or "name")
        return found.name if found and not found.required else ""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        return f"{logical}-{suffix}"

    def checked(self, described: Described, inputs: Properties) -> Properties:
        # pulumi-gcp merges the provider's defaultLabels into `labels`.
        own = inputs.get("labels") or {}
        if "labels" not in described.inputs or not self._labels or not isinstance(own, dict) or signature(own):
            return inputs
        return {**inputs, "labels": {**self._labels, **own}}

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """Return the inputs as Filestore reports them: with the names of networks instead of their IDs.

        GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf uses the full ID only for
        a shared VPC (read 2026-11-22).
        """
        if described.token != FILESTORE:
            return inputs
        networks = objects(inputs.get("networks"))
        return {**inputs, "networks": [{**item, "network": _last(item.get("network"))} for item in networks]}

    def identity(self, described: Described, inputs: Properties) -> str:
        known = {**inputs, **self.given(described, inputs)}
        # An input can be a link to a zone, region or router, but an ID contains only the name.
        values = {
            name: _last(value) if name in (*_LOCATIONS, "router") else str(value) for name, value in known.items()
        }
        return fill_path(self.rules.of(described.token).path or _guessed_path(described), values)

    def given(self, described: Described, inputs: Properties) -> Properties:
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

    def computed(self, described: Described, identity: str, outputs: Properties) -> Properties:
        made = dict(outputs)
        if "selfLink" in described.outputs:
            made["selfLink"] = f"{API}{identity}"
        if described.token == INSTANCE:
            return {**made, **_machine(identity, made)}
        if described.token == "gcp:compute/address:Address":  # noqa: S105 - a resource type
            internal = made.get("addressType") == "INTERNAL"
            made.setdefault("address", (private_address if internal else public_address)(identity))
        if described.token == "gcp:serviceaccount/account:Account":  # noqa: S105 - a resource type
            email = identity.rpartition("/")[2]
            made |= {"email": email, "member": f"serviceAccount:{email}", "name": identity}
        if described.token == FILESTORE:
            addresses: Value = [private_address(identity)]
            made["networks"] = [{"ipAddresses": addresses, **item} for item in objects(made.get("networks"))]
        return made

    def machine(self, record: Record, world: World) -> CloudMachine | None:
        if record.token == FILESTORE:
            return _filestore(record)
        if record.token != INSTANCE:
            return None
        facts, given = record.outputs, objects(record.outputs.get("networkInterfaces"))
        access = objects(given[0].get("accessConfigs"))
        kind = machines("gcp").get(_last(facts.get("machineType")))
        names = _card_names(kind)
        return CloudMachine(
            resource=record.id,
            name=str(facts["name"]),
            cloud="gce",
            firmware=["type=1,manufacturer=Google,product=Google Compute Engine,serial=GoogleCloud-OFFLINE"],
            metadata=_metadata_tree(record, given[0]),
            cards=[
                self._card(world, facts, card, name)
                for card, name in zip(given, [*names, *len(given) * [""]], strict=False)
            ],
            public=str(access[0]["natIp"]) if access else "",
            disks=[self._disk(world, attached) for attached in objects(facts.get("attachedDisks"))],
            contract=_CONTRACT,
            first_boot=[*_FIRST_BOOT, *(_REGISTRY if names else ())],
            gpus=gpus_of(kind) if kind else None,
            apertures=kind.gpus if kind and kind.fabric == _TCPXO else 0,
            runs=facts.get("currentStatus") == "RUNNING",
            notice=notice(facts, NOTICE if _rules(facts).get("preemptible") else 0),
        )

    def _card(self, world: World, facts: Properties, given: Properties, name: str) -> Card:
        subnet = world.find(self.refers(str(given.get("subnetwork"))))
        prefix = str(self.ranges(subnet.inputs)[0] if subnet else "/24").partition("/")[2]
        network = _last(subnet.inputs.get("network")) if subnet else ""
        address = IPv4Interface(f"{given['networkIp']}/{prefix}")
        firewalls = [
            found.inputs
            for found in world.records()
            if found.token == FIREWALL and not found.made_by and _last(found.inputs.get("network")) == network
        ]
        tags: Any = facts.get("tags") or ()
        return Card(address=address, network=network, name=name, firewall=google(firewalls, tags))

    def _disk(self, world: World, attached: Properties) -> CloudDisk:
        found = world.find(self.refers(str(attached.get("source"))))
        size = found.inputs.get("size") if found else None
        path = disk_file(world.folder, found.id if found else str(attached))
        return CloudDisk(path=path, serial=str(attached.get("deviceName")), gib=int(float(str(size or 10))))

    def refers(self, text: str) -> str:
        # Resources in other projects (images, shared reservations) are assumed to exist. A boot disk is not a resource
        # of the stack, because Google creates it with its machine.
        if BOOT_DISK in text:
            return ""
        found = _LINK.match(text)
        mine = f"projects/{self._setting('project', {})}/"
        if found is None or not found.group(1).startswith(mine) or found.group(1).split("/")[-2] in _GIVEN:
            return ""
        return found.group(1)

    def refused_location(self, inputs: Properties) -> str:
        zone = str(inputs.get("zone") or "")
        region, _, letter = zone.rpartition("/")[2].rpartition("-")
        if not zone or letter in catalog("gcp_zones.yaml", "zones").get(region, ""):
            return ""
        return f"googleapi: Error 400: Invalid value for field 'zone': '{zone}'. Unknown zone., invalid"

    def requested_addresses(self, token: str, inputs: Properties) -> Iterator[AddressRequest]:
        for item in objects(inputs.get("networkInterfaces")) if token == INSTANCE else ():
            subnet, address = item.get("subnetwork"), item.get("networkIp")
            if isinstance(subnet, str) and isinstance(address, str):
                yield AddressRequest(subnet, address)

    def ranges(self, inputs: Properties) -> Sequence[str]:
        found = inputs.get("ipCidrRange")
        return [found] if isinstance(found, str) else []

    def refused_change(self, path: str) -> str:
        return f"googleapi: Error 400: Invalid value for field '{path}': it cannot be changed., invalid"

    def _setting(self, name: str, inputs: Properties) -> str:
        found = inputs.get(name) or self._config.get(name)
        if found:
            return str(found)
        zone = str(inputs.get("zone") or self._config.get("zone") or "")
        return zone.rpartition("-")[0] if name == "region" and zone else "offline"

    def _guest_attributes(self, world: World, arguments: Properties) -> Properties:
        """Return the `variableKey` attribute, or {} if the machine has not published it.

        The provider fails only if the machine is missing. Errors in the request for the attributes are ignored
        (terraform-provider-google-beta@93c65b2d60fe:
        services/compute/data_source_google_compute_instance_guest_attributes.go, read 2026-11-22).
        """
        name, key = str(arguments.get("name")), arguments.get("variableKey")
        machine = self._instance(world, arguments, name)
        if is_wanted():
            found = hypervisor(world.folder).attribute(name, str(key))
            return {"id": machine.id, "name": name, "variableKey": key, "variableValue": found} if found else {}
        booting = world.count(f"attributes of {world.seed(machine.id)}") <= _BOOTING
        silent = booting or not _runs(machine) or _metadata(machine).get("enable-guest-attributes") != "TRUE"
        kind, host = host_key(world.seed(machine.id)).split()
        value = {_BAKE: "done", f"hostkeys/{kind}": host}.get(str(key))
        if silent or value is None:
            return {}
        return {"id": machine.id, "name": name, "variableKey": key, "variableValue": value}

    def _machine(self, world: World, arguments: Properties) -> Properties:
        """Return a machine. A `yard bake` builder shuts down after it has published its result."""
        machine = self._instance(world, arguments, arguments.get("name"))
        bakes = "trainyard-bake" in str(_metadata(machine).get("user-data"))
        off = bakes and world.count(f"state of {world.seed(machine.id)}") > _BOOTING
        disk = f"{API}{machine.id.replace('/instances/', BOOT_DISK)}"
        status: Value = "TERMINATED" if off else machine.outputs.get("currentStatus")
        return {"id": machine.id, **machine.outputs, "currentStatus": status, "bootDisks": [{"source": disk}]}

    def _serial_port(self, world: World, arguments: Properties) -> Properties:
        """Return a machine's console output, or fail as the API does (terraform-provider-google-beta@93c65b2d60fe:
        services/compute/data_source_google_compute_instance_serial_port.go, read 2026-11-22).
        """
        name = arguments.get("instance")
        machine = self._instance(world, arguments, name)
        if not _runs(machine):
            raise ResourceError(f"googleapi: Error 400: The resource '{machine.id}' is not ready, resourceNotReady")
        if is_wanted():
            contents = hypervisor(world.folder).console(str(name))
            return {"id": machine.id, "instance": name, "port": 1.0, "contents": contents}
        booting = world.count(f"console of {world.seed(machine.id)}") <= _BOOTING
        line = "" if booting else f"trainyard-hostkey: {host_key(world.seed(machine.id))}\r\n"
        return {"id": machine.id, "instance": name, "port": 1.0, "contents": f"[    0.0] offline\r\n{line}"}

    def _instance(self, world: World, arguments: Properties, name: Value) -> Record:
        project, zone = (self._setting(place, arguments) for place in ("project", "zone"))
        identity = f"projects/{project}/zones/{zone}/instances/{name}"
        machine = world.find(identity)
        if machine is None:
            raise ResourceError(f"{identity} not found")
        return machine


def _filestore(record: Record) -> CloudMachine:
    share: Any = record.outputs["fileShares"]
    address: Any = objects(record.outputs.get("networks"))[0]["ipAddresses"]
    exports = [
        Export(ranges=option["ipRanges"], squash=option.get("squashMode") == "ROOT_SQUASH")
        for option in share.get("nfsExportOptions") or ()
    ]
    return nfs_server(record.id, _last(record.id), address[0], f"/{share['name']}", exports)


_TOKEN = "offline"  # noqa: S105 - of a simulated account
"""The machines' access token, which the registry with GPUDirect's images expects."""
_TCPXO = "gpudirect-tcpxo"


def _card_names(kind: Machine | None) -> Sequence[str]:
    """Return the names of a machine type's cards, if NCCL's settings for GPUDirect-TCPXO contain them."""
    if kind is None or kind.fabric != _TCPXO:
        return ()
    settings = fabrics()[_TCPXO].env
    return [settings["NCCL_FASTRAK_CTRL_DEV"], *settings["NCCL_FASTRAK_IFNAME"].split(",")]


_REGISTRY = (
    "echo '127.0.0.2 us-docker.pkg.dev' >>/etc/hosts",
    "systemctl --quiet enable offline-registry.service",
    "systemctl start --no-block offline-registry.service",
)
"""Commands that replace the registry with GPUDirect's images."""
_CONTRACT = "gcp-ubuntu-24.04-nvidia-580"
_FIRST_BOOT = (
    "printf 'datasource_list: [GCE]\\n' >/etc/cloud/cloud.cfg.d/99-offline.cfg",
    # DHCP on Google Cloud names a resolver that knows this name.
    "echo '169.254.169.254 metadata.google.internal metadata' >>/etc/hosts",
    *PORTMAPPER,
    "systemctl --quiet enable google-guest-agent.service",
    "systemctl start --no-block google-guest-agent.service",
)


def _metadata_tree(record: Record, card: Properties) -> Mapping[str, Any]:
    """Return what the metadata server of this machine returns, by the names in the paths.

    Source: Google, "Predefined metadata keys" (read 2026-11-25).
    """
    facts, project = record.outputs, str(record.outputs.get("project"))
    zone, rules = _last(facts.get("zone")), _rules(facts)
    access = [
        {"external-ip": str(one.get("natIp")), "type": "ONE_TO_ONE_NAT"} for one in objects(card.get("accessConfigs"))
    ]
    return {
        "instance": {
            "attributes": _metadata(record),
            "hostname": f"{facts['name']}.{zone}.c.{project}.internal",
            "id": int(str(facts.get("instanceId") or 0)),
            "image": str(_last(facts.get("bootDisk"))),
            "machine-type": f"projects/0/machineTypes/{_last(facts.get('machineType'))}",
            "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE" if is_announced(facts) else "NONE",
            "name": str(facts["name"]),
            "network-interfaces": {
                "0": {
                    "access-configs": {str(index): one for index, one in enumerate(access)},
                    "ip": str(card.get("networkIp")),
                    "mtu": 1460,
                }
            },
            "service-accounts": {
                "default": {
                    "token": json.dumps({"access_token": "offline", "expires_in": 3600, "token_type": "Bearer"})
                }
            },
            "preempted": str(EVICTED in facts and not is_announced(facts)).upper(),
            "scheduling": {
                "automatic-restart": str(rules.get("automaticRestart", True)).upper(),
                "on-host-maintenance": str(rules.get("onHostMaintenance", "MIGRATE")),
                "preemptible": str(rules.get("preemptible", False)).upper(),
            },
            "tags": facts.get("tags") or [],
            "virtual-clock": {"drift-token": "0"},
            "zone": f"projects/0/zones/{zone}",
        },
        "project": {"attributes": {}, "numeric-project-id": 0, "project-id": project},
    }


def _rules(facts: Properties) -> Properties:
    """Return a machine's scheduling options."""
    found = facts.get("scheduling")
    return found if isinstance(found, dict) else {}


def _last(link: Value) -> str:
    return str(link).rpartition("/")[2]


def _guessed_path(described: Described) -> str:
    """Guess the ID pattern of a type without rules, based on whether it has a zone, region or location."""
    kind = described.token.rpartition(":")[2]
    collection = f"{kind[0].lower()}{kind[1:]}s"
    scope = next((name for name in _LOCATIONS if name in described.inputs), "")
    module = described.token.split(":")[1].partition("/")[0]
    middle = f"{scope}s/{{{scope}}}/" if scope else "global/" if module == "compute" else ""
    return f"projects/{{project}}/{middle}{collection}/{{name}}"


def _runs(machine: Record) -> bool:
    return machine.outputs.get("currentStatus") == "RUNNING"


def _metadata(machine: Record) -> Properties:
    found = machine.inputs.get("metadata")
    return found if isinstance(found, dict) else {}


def _machine(identity: str, outputs: Properties) -> Properties:
    return {
        "currentStatus": outputs.get("currentStatus") or "RUNNING",
        "creationTimestamp": outputs.get("creationTimestamp") or datetime.now(UTC).isoformat(timespec="milliseconds"),
        "cpuPlatform": "offline",
        "networkInterfaces": [
            _interface(f"{identity}/{index}", index, item)
            for index, item in enumerate(objects(outputs.get("networkInterfaces")))
        ],
    }


def _interface(seed: str, index: int, given: Properties) -> Value:
    made: Properties = {"name": f"nic{index}", "networkIp": private_address(seed), "fingerprint": fingerprint(seed)}
    made |= given
    if "accessConfigs" in given:
        made["accessConfigs"] = [
            {"networkTier": "PREMIUM", **item, "natIp": item.get("natIp") or public_address(seed)}
            for item in objects(given["accessConfigs"])
        ]
    return made
