"""Changes made to resources outside Pulumi, which a refresh detects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from offline.cloud.azure_refusals import EVICTED
from offline.cloud.world import Record
from offline.resources import ResourceError
from offline.values import Properties

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def drifted(record: Record, settings: Mapping[str, Any]) -> Record:
    """Return the resource with the values from `settings`, by property path ("networkInterfaces[0].networkIp")."""
    inputs, outputs = deepcopy(record.inputs), deepcopy(record.outputs)
    for path, value in settings.items():
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
    steps: list[Any] = [int(index) if index else name for name, index in _STEP.findall(path)]
    at: Any = properties
    try:
        for step in steps[:-1]:
            at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
        at[steps[-1]] = value
    except (IndexError, TypeError) as error:
        raise ResourceError(f"faults.yaml: drifted: no {path} in the resource. Fix: correct the path") from error
