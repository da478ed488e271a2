"""What happens to resources behind Pulumi's back."""

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
    """Return the resource with properties set by path ("tags.owner", "networkInterfaces[0].networkIp")."""
    inputs, outputs = deepcopy(record.inputs), deepcopy(record.outputs)
    for path, value in settings.items():
        for properties in (inputs, outputs):
            _set(properties, path, value)
    return replace(record, inputs=inputs, outputs=outputs)


def evicted(record: Record) -> Record | None:
    """Return a Spot machine after its eviction: a stopped one, or None if the eviction deletes it.

    Google's provider reports the status of a machine as its desiredStatus if the program sets one
    (resource_compute_instance.go), so a refresh finds a difference there.
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
    """Return a virtual machine of Azure as its API describes it while it is deallocated: without facts of its disks.

    storageAccountType: Azure/azure-powershell issue 13213 ("not returned by the VM GET API when the VM is deallocated",
    by design). diskSizeGB: hashicorp/terraform-provider-azurerm issue 539. The plugin removes from the inputs what the
    outputs lost: pulumi/pulumi-azure-native@006a62af:provider/pkg/provider/provider.go, Read (all read 2026-11-22).
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
        raise ResourceError(f"faults.yaml: drifted: there is no {path}. Fix: give a path of the resource") from error
