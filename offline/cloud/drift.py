"""What happens to resources behind Pulumi's back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

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
    outputs: Properties = {**record.outputs, "offlineEvicted": True}
    if "currentStatus" in outputs:
        outputs["currentStatus"] = "TERMINATED"
    if "desiredStatus" not in record.inputs:
        return replace(record, outputs=outputs)
    desired: Properties = {"desiredStatus": "TERMINATED"}
    return replace(record, inputs={**record.inputs, **desired}, outputs={**outputs, **desired})


def _set(properties: Properties, path: str, value: Any) -> None:
    steps: list[Any] = [int(index) if index else name for name, index in _STEP.findall(path)]
    at: Any = properties
    try:
        for step in steps[:-1]:
            at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
        at[steps[-1]] = value
    except (IndexError, TypeError) as error:
        raise ResourceError(f"faults.yaml: drifted: there is no {path}. Fix: give a path of the resource") from error
