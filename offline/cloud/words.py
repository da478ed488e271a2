"""What the clouds say when they refuse, as their own APIs word it, with a way out."""

from __future__ import annotations

from offline.values import Properties, Value

THROTTLED = {
    "azure-native": "Code=TooManyRequests Message=The request is being throttled (429)",
    "gcp": "googleapi: Error 429: Quota exceeded for quota metric 'Queries', rateLimitExceeded",
}


def refusal(package: str, fault: str, name: str, inputs: Properties) -> str:
    """Return what `up` shows for an injected fault: the cloud's words, the machine, the place and the way out."""
    return f"{_WORDS[package, fault].format(name=name, place=_place(inputs), machine=_machine(inputs))} (offline fault)"


_OTHER_PLACE = "Fix: try again later, use another zone or region, or ask for a reservation"
_ASK = "Fix: ask for more quota, or choose fewer or other machines"
_LATE = "Fix: run `pulumi up` again, and give the resource longer customTimeouts if it needs them"
_WORDS = {
    ("azure-native", "quota"): (
        "Code=OperationNotAllowed Message=Operation could not be completed as it results in exceeding approved Cores "
        "quota: {name} ({machine}) in {place}. " + _ASK
    ),
    ("azure-native", "stockout"): (
        "Code=ZonalAllocationFailed Message=Allocation failed. We do not have sufficient capacity for the requested VM "
        "size: {name} ({machine}) in {place}. " + _OTHER_PLACE
    ),
    ("azure-native", "timed-out"): "Code=OperationTimedOut Message={name} in {place} was not ready in time. " + _LATE,
    ("gcp", "quota"): (
        "googleapi: Error 403: QUOTA_EXCEEDED - Quota 'GPUS_ALL_REGIONS' exceeded: {name} ({machine}) in {place}. "
        + _ASK
    ),
    ("gcp", "stockout"): (
        "Error waiting for instance to create: ZONE_RESOURCE_POOL_EXHAUSTED - The zone does not have enough resources "
        "available to fulfill the request: {name} ({machine}) in {place}. " + _OTHER_PLACE
    ),
    ("gcp", "timed-out"): "Error waiting to create {name} in {place}: timeout while waiting for state. " + _LATE,
}


def _place(inputs: Properties) -> str:
    zones = inputs.get("zones")
    parts: list[Value] = [inputs.get("zone") or inputs.get("location") or inputs.get("region") or "an unnamed place"]
    if isinstance(zones, list) and zones:
        parts.append(f"zone {zones[0]}")
    return " ".join(str(part).rpartition("/")[2] for part in parts)


def _machine(inputs: Properties) -> str:
    hardware = inputs.get("hardwareProfile")
    size = hardware.get("vmSize") if isinstance(hardware, dict) else inputs.get("machineType")
    return str(size or "no machine type").rpartition("/")[2]
