"""Faults that are injected by the `faults.yaml` file in a stack's folder (docs/dev/offline.md).

The file is read before every operation. The counts of matching operations are stored on disk, because `skip` and
`times` apply across processes and runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

import yaml

from offline.boot.description import CloudMachine
from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties, Value, objects

FILE = "faults.yaml"
EVICTED = "offlineEvicted"
"""Name of an output that only stopped machines have. For an Azure machine, it contains the disks' properties."""
NOTICE = "offlineNotice"
"""Name of an output that only machines have which their host stops: the seconds until the shutdown, or None if the host
fails without a notice."""
_DISKS = "storageProfile"
_AT = {
    "stockout": "create",
    "slow": "create",
    "evicted": "read",
    "deallocated": "read",
    "deleted": "read",
    "detached": "read",
    "host_error": "read",
    "maintenance": "read",
    "failed": "command",
    "slow_metadata": "boot",
    "late_storage": "boot",
}
"""Mapping from each fault to the operation that it affects by default."""
_OTHER_ZONE = "Fix: try again later, use another zone or region, or buy a reservation"
_STOCKOUT = {
    "azure-native": (
        "Code=ZonalAllocationFailed Message=Allocation failed. We do not have sufficient capacity for the "
        "requested VM size: {name} ({machine}) in {location}. " + _OTHER_ZONE
    ),
    "gcp": (
        "Error waiting for instance to create: ZONE_RESOURCE_POOL_EXHAUSTED - The zone does not have enough "
        "resources available to fulfill the request: {name} ({machine}) in {location}. " + _OTHER_ZONE
    ),
}
"""Mapping from package to the message that the cloud's API returns for a stockout."""


@dataclass(frozen=True)
class Fault:
    fault: str
    """A key in _AT."""
    of: str = "*"
    """Pattern for resource types ("*:VirtualMachine")."""
    name: str = "*"
    """Pattern for Pulumi names ("opt-gpu-*")."""
    at: str = ""
    """The operation: create, read, update, delete, command or boot. The default depends on `fault`."""
    skip: int = 0
    """Number of matching operations that succeed before the first failure."""
    times: int = 0
    """Maximum number of failures, or 0 for no limit. By default, a fault during a refresh occurs once."""
    seconds: float = 1.0
    """Duration of `slow`, delay of each answer (slow_metadata) or of the first one (late_storage), or time from the
    notice to the shutdown (maintenance)."""
    part: str = ""
    """What is deleted of the resource: the name of a list, or of an item of a list ("securityRules/inside")."""

    @property
    def key(self) -> str:
        """The key of the fault's count. An edited fault has a new key, so its count starts at zero."""
        return f"fault {hashlib.sha256(repr(self).encode()).hexdigest()}"


def strikes(world: World, operation: str, token: str, name: str) -> list[Fault]:
    """Count this operation and return the faults that affect it. Raises ResourceError for an invalid file."""
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
        raise ResourceError(f"{file}: not YAML ({error}). Fix: see docs/dev/offline.md") from error
    problems = list(_problems(content))
    if problems:
        raise ResourceError(f"{file}: {'; '.join(problems)}. Fix: see docs/dev/offline.md")
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


def stockout_message(package: str, name: str, inputs: Properties) -> str:
    """Return the cloud's error message for a stockout, with a fix."""
    hardware = inputs.get("hardwareProfile")
    size = hardware.get("vmSize") if isinstance(hardware, dict) else inputs.get("machineType")
    zones = inputs.get("zones")
    places: list[Value] = [inputs.get("zone") or inputs.get("location") or inputs.get("region") or "an unknown region"]
    if isinstance(zones, list) and zones:
        places.append(f"zone {zones[0]}")
    location = " ".join(str(place).rpartition("/")[2] for place in places)
    machine = str(size or "no machine type").rpartition("/")[2]
    return f"{_STOCKOUT[package].format(name=name, location=location, machine=machine)} (offline fault)"


def changed_outside(fault: Fault, record: Record) -> Sequence[Record]:
    """Return the successive states of a resource that the cloud changes, or none if it was deleted."""
    match fault.fault:
        case "deleted":
            return [_without(record, fault.part)] if fault.part else []
        case "detached":
            return [replace(record, inputs=_without_disks(record.inputs), outputs=_without_disks(record.outputs))]
        case "host_error":
            return _stopped_by_host(record, None)
        case "maintenance":
            return _stopped_by_host(record, fault.seconds)
        case "evicted":
            left = evicted(record)
            return [left] if left else []
        case _:
            return [deallocated(record)]


def _without(record: Record, part: str) -> Record:
    name, _, item = part.partition("/")

    def cut(properties: Properties) -> Properties:
        left: Value = [one for one in objects(properties.get(name)) if item and one.get("name") != item]
        return {**properties, name: left} if name in properties else properties

    return replace(record, inputs=cut(record.inputs), outputs=cut(record.outputs))


def _without_disks(machine: Properties) -> Properties:
    """Return a machine whose data disks are detached, as its cloud's API describes it."""
    left: Any = deepcopy(machine)
    for owner, name in ((left, "attachedDisks"), (left.get(_DISKS) or {}, "dataDisks")):
        if name in owner:
            owner[name] = []
    return dict(left)


def _stopped_by_host(record: Record, notice: float | None) -> Sequence[Record]:
    """Return the states of a machine whose host fails or, with a notice, is maintained.

    Azure starts the machine on another host (MicrosoftDocs/azure-compute-docs@40aaa64a2771: articles/virtual-machines/
    understand-vm-reboots.md, "Unexpected downtime"), and so does Google Cloud with automaticRestart, which Spot
    machines cannot have (Google, "Set the host maintenance policy for a compute instance"; both read 2026-11-28).
    """
    stopped = _terminated(record) if "currentStatus" in record.outputs else record
    stopped = replace(stopped, outputs={**stopped.outputs, EVICTED: True, NOTICE: notice})
    scheduling = record.inputs.get("scheduling")
    restarts = not isinstance(scheduling, dict) or scheduling.get("automaticRestart", True)
    return [stopped, record] if restarts else [stopped]


def evicted(record: Record) -> Record | None:
    """Return the Spot machine after an eviction: stopped, or None if the eviction deletes it."""
    scheduling = record.inputs.get("scheduling")
    policy = scheduling.get("instanceTerminationAction") if isinstance(scheduling, dict) else None
    if "DELETE" in (policy, str(record.inputs.get("evictionPolicy")).upper()):
        return None
    if record.token.endswith(":compute:VirtualMachine"):
        return deallocated(record)
    return _terminated(record)


def _terminated(record: Record) -> Record:
    """Return a stopped machine of Google Cloud.

    If the program sets desiredStatus, Google's provider returns the machine's current status as desiredStatus
    (resource_compute_instance.go), so a refresh detects the difference.
    """
    outputs: Properties = {**record.outputs, EVICTED: True}
    if "currentStatus" in outputs:
        outputs["currentStatus"] = "TERMINATED"
    if "desiredStatus" not in record.inputs:
        return replace(record, outputs=outputs)
    desired: Properties = {"desiredStatus": "TERMINATED"}
    return replace(record, inputs={**record.inputs, **desired}, outputs={**outputs, **desired})


def deallocated(record: Record) -> Record:
    """Return a deallocated virtual machine as Azure's API describes it.

    storageAccountType is missing: Azure/azure-powershell issue 13213 ("not returned by the VM GET API when the VM is
    deallocated", by design). diskSizeGB is missing: hashicorp/terraform-provider-azurerm issue 539. The plugin removes
    the same values from the inputs: pulumi/pulumi-azure-native@006a62af:provider/pkg/provider/provider.go, Read (all
    read 2026-11-22).
    """
    kept: Properties = {"inputs": record.inputs.get(_DISKS), "outputs": record.outputs.get(_DISKS)}
    outputs = {**_without_disk_facts(record.outputs), EVICTED: kept}
    return replace(record, inputs=_without_disk_facts(record.inputs), outputs=outputs)


def started(record: Record) -> Record:
    """Return a deallocated Azure machine after `az vm start`. Azure's API describes its disks completely again."""
    kept: Any = record.outputs.get(EVICTED)
    if not isinstance(kept, dict):
        return record
    outputs = {name: value for name, value in record.outputs.items() if name != EVICTED}
    return replace(record, inputs=record.inputs | {_DISKS: kept["inputs"]}, outputs=outputs | {_DISKS: kept["outputs"]})


def _without_disk_facts(machine: Properties) -> Properties:
    left: Any = deepcopy(machine)
    profile = left.get("storageProfile") or {}
    for disk in (profile.get("osDisk"), *(profile.get("dataDisks") or ())):
        if disk:
            disk.pop("diskSizeGB", None)
            (disk.get("managedDisk") or {}).pop("storageAccountType", None)
    return dict(left)


def is_announced(outputs: Properties) -> bool:
    """Return whether the cloud has announced the maintenance of a machine's host."""
    return outputs.get(NOTICE) is not None


def notice(outputs: Properties, usual: float) -> float | None:
    """Return CloudMachine.notice for a machine whose eviction is announced `usual` seconds before."""
    found: Any = outputs.get(NOTICE, usual)
    return found if found is None else float(found)


def booted(machine: CloudMachine, met: Iterable[Fault]) -> CloudMachine:
    """Return the description of a machine with the faults of its services."""
    for fault in met:
        if fault.fault == "slow_metadata":
            machine = replace(machine, metadata_delay=fault.seconds)
        elif fault.fault == "late_storage":
            pause = f"[Service]\\nExecStartPre=/bin/sleep {fault.seconds:g}\\n"
            folder = "/etc/systemd/system/nfs-server.service.d"
            late = [f"mkdir -p {folder}", f"printf '{pause}' >{folder}/offline.conf", "systemctl daemon-reload"]
            machine = replace(machine, first_boot=[*late, *machine.first_boot])
    return machine
