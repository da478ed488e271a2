"""Injected faults, from the file `faults.yaml` in the stack's folder. docs/offline.md describes the file.

The file is read before every operation. The number of matching operations is stored on disk, because `skip` and `times`
apply to all processes and runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import yaml

from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties, Value

FILE = "faults.yaml"
EVICTED = "offlineEvicted"
"""Name of an output that exists only on deallocated machines."""
_AT = {
    "quota": "create",
    "stockout": "create",
    "throttled": "create",
    "timed-out": "create",
    "slow": "create",
    "evicted": "read",
    "deallocated": "read",
    "deleted": "read",
    "drifted": "read",
    "unpublished": "attributes",
    "failed": "command",
}
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_OTHER_ZONE = "Fix: try again later, use another zone or region, or buy a reservation"
_QUOTA = "Fix: request more quota, or choose fewer or different machines"
_TIMEOUT = "Fix: run `pulumi up` again, and set longer customTimeouts on the resource if necessary"
_MESSAGES = {
    "azure-native": {
        "quota": (
            "Code=OperationNotAllowed Message=Operation could not be completed as it results in exceeding approved "
            "Cores quota: {name} ({machine}) in {location}. " + _QUOTA
        ),
        "stockout": (
            "Code=ZonalAllocationFailed Message=Allocation failed. We do not have sufficient capacity for the "
            "requested VM size: {name} ({machine}) in {location}. " + _OTHER_ZONE
        ),
        "throttled": "Code=TooManyRequests Message=The request is being throttled (429)",
        "timed-out": "Code=OperationTimedOut Message={name} in {location} was not ready in time. " + _TIMEOUT,
    },
    "gcp": {
        "quota": (
            "googleapi: Error 403: QUOTA_EXCEEDED - Quota 'GPUS_ALL_REGIONS' exceeded: {name} ({machine}) in "
            "{location}. " + _QUOTA
        ),
        "stockout": (
            "Error waiting for instance to create: ZONE_RESOURCE_POOL_EXHAUSTED - The zone does not have enough "
            "resources available to fulfill the request: {name} ({machine}) in {location}. " + _OTHER_ZONE
        ),
        "throttled": "googleapi: Error 429: Quota exceeded for quota metric 'Queries', rateLimitExceeded",
        "timed-out": "Error waiting to create {name} in {location}: timeout while waiting for state. " + _TIMEOUT,
    },
}
"""Error messages with the text from the clouds' APIs, by package and fault."""


@dataclass(frozen=True)
class Fault:
    """An entry in the file."""

    fault: str
    """A key in _AT."""
    of: str = "*"
    """Pattern for resource types ("*:VirtualMachine")."""
    name: str = "*"
    """Pattern for Pulumi names ("opt-gpu-*")."""
    at: str = ""
    """create, read, update, delete, attributes, console or command; the default depends on the fault."""
    skip: int = 0
    """Number of matching operations that succeed before the first failure."""
    times: int = 0
    """Maximum number of failures, or 0 for no limit. Faults during a refresh occur once."""
    seconds: float = 1.0
    """Duration of `slow`."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Values that `drifted` sets, by property path."""

    @property
    def key(self) -> str:
        """Key under which matching operations are counted. The count of an edited fault starts at zero."""
        return f"fault {hashlib.sha256(repr(self).encode()).hexdigest()}"


def strikes(world: World, operation: str, token: str, name: str) -> list[Fault]:
    """Count this operation and return its faults. Raises ResourceError for an invalid file."""
    met = [fault for fault in _read(world) if _matches(fault, operation, token, name)]
    return [fault for fault in met if _now(fault, world.count(fault.key))]


def _now(fault: Fault, met: int) -> bool:
    times = fault.times or (1 if _AT[fault.fault] == "read" else 0)
    return met > fault.skip and (times == 0 or met <= fault.skip + times)


def _matches(fault: Fault, operation: str, token: str, name: str) -> bool:
    at = fault.at or _AT[fault.fault]
    return at == operation and fnmatchcase(token, fault.of) and fnmatchcase(name, fault.name)


def _read(world: World) -> list[Fault]:
    file = world.folder / FILE
    try:
        content = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        return []
    except yaml.YAMLError as error:
        raise ResourceError(f"{file}: not YAML ({error}). Fix: see docs/offline.md") from error
    problems = list(_problems(content))
    if problems:
        raise ResourceError(f"{file}: {'; '.join(problems)}. Fix: see docs/offline.md")
    return [Fault(**entry) for entry in content or ()]


def _problems(content: object) -> Iterator[str]:
    if content is None:
        return
    if not isinstance(content, list):
        yield "must be a list of faults"
        return
    known = {item.name for item in fields(Fault)}
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict) or entry.get("fault") not in _AT:
            yield f"entry {number}: `fault` must be one of {', '.join(_AT)}"
        elif set(entry) - known:
            yield f"entry {number}: unknown {', '.join(map(str, sorted(set(entry) - known)))}"


def message(package: str, fault: str, name: str, inputs: Properties) -> str:
    """Return the cloud's error message for an injected fault, with a fix."""
    hardware = inputs.get("hardwareProfile")
    size = hardware.get("vmSize") if isinstance(hardware, dict) else inputs.get("machineType")
    zones = inputs.get("zones")
    places: list[Value] = [inputs.get("zone") or inputs.get("location") or inputs.get("region") or "an unknown region"]
    if isinstance(zones, list) and zones:
        places.append(f"zone {zones[0]}")
    location = " ".join(str(place).rpartition("/")[2] for place in places)
    machine = str(size or "no machine type").rpartition("/")[2]
    return f"{_MESSAGES[package][fault].format(name=name, location=location, machine=machine)} (offline fault)"


def changed_outside(fault: Fault, record: Record) -> Record | None:
    """Return a resource after a fault that occurs outside Pulumi, or None if the resource no longer exists."""
    match fault.fault:
        case "deleted":
            return None
        case "evicted":
            return evicted(record)
        case "deallocated":
            return deallocated(record)
    inputs, outputs = deepcopy(record.inputs), deepcopy(record.outputs)
    for path, value in fault.set.items():
        for properties in (inputs, outputs):
            _set(properties, path, value)
    return replace(record, inputs=inputs, outputs=outputs)


def evicted(record: Record) -> Record | None:
    """Return the record of an evicted Spot machine, which is stopped, or None if the eviction deletes the machine.

    If the program sets desiredStatus, Google's provider returns the machine's current status as desiredStatus
    (resource_compute_instance.go), so a refresh detects the difference.
    """
    scheduling = record.inputs.get("scheduling")
    policy = scheduling.get("instanceTerminationAction") if isinstance(scheduling, dict) else None
    if "DELETE" in (policy, str(record.inputs.get("evictionPolicy")).upper()):
        return None
    if record.token.endswith(":compute:VirtualMachine"):
        return deallocated(record)
    outputs: Properties = {**record.outputs, EVICTED: True}
    if "currentStatus" in outputs:
        outputs["currentStatus"] = "TERMINATED"
    if "desiredStatus" not in record.inputs:
        return replace(record, outputs=outputs)
    desired: Properties = {"desiredStatus": "TERMINATED"}
    return replace(record, inputs={**record.inputs, **desired}, outputs={**outputs, **desired})


def deallocated(record: Record) -> Record:
    """Return an Azure virtual machine as described by Azure's API while the machine is deallocated.

    storageAccountType is missing: Azure/azure-powershell issue 13213 ("not returned by the VM GET API when the VM is
    deallocated", by design). diskSizeGB is missing: hashicorp/terraform-provider-azurerm issue 539. The plugin removes
    the same values from the inputs: pulumi/pulumi-azure-native@006a62af:provider/pkg/provider/provider.go, Read (all
    read 2026-11-22).
    """
    outputs = {**_without_disk_facts(record.outputs), EVICTED: True}
    return replace(record, inputs=_without_disk_facts(record.inputs), outputs=outputs)


def _without_disk_facts(machine: Properties) -> Properties:
    left: Any = deepcopy(machine)
    profile = left.get("storageProfile") or {}
    for disk in (profile.get("osDisk"), *(profile.get("dataDisks") or ())):
        if disk:
            disk.pop("diskSizeGB", None)
            (disk.get("managedDisk") or {}).pop("storageAccountType", None)
    return dict(left)


def _set(properties: Properties, path: str, value: Any) -> None:
    """Set the value at a path ("networkInterfaces[0].networkIp")."""
    steps: list[Any] = [int(index) if index else name for name, index in _STEP.findall(path)]
    at: Any = properties
    try:
        for step in steps[:-1]:
            at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
        at[steps[-1]] = value
    except (IndexError, TypeError) as error:
        raise ResourceError(f"faults.yaml: drifted: no {path} in the resource. Fix: correct the path") from error
