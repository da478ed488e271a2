"""Error messages for injected faults, with the text from the clouds' APIs and a fix."""

from __future__ import annotations

from offline.values import Properties, Value

THROTTLED = {
    "azure-native": "Code=TooManyRequests Message=The request is being throttled (429)",
    "gcp": "googleapi: Error 429: Quota exceeded for quota metric 'Queries', rateLimitExceeded",
}


def refusal(package: str, fault: str, name: str, inputs: Properties) -> str:
    """Return the error message of an injected fault."""
    values = {"name": name, "location": _location(inputs), "machine": _machine(inputs)}
    return f"{_MESSAGES[package, fault].format(**values)} (offline fault)"


_OTHER_ZONE = "Fix: try again later, use another zone or region, or buy a reservation"
_QUOTA = "Fix: request more quota, or choose fewer or different machines"
_TIMEOUT = "Fix: run `pulumi up` again, and set longer customTimeouts on the resource if necessary"
_MESSAGES = {
    ("azure-native", "quota"): (
        "Code=OperationNotAllowed Message=Operation could not be completed as it results in exceeding approved Cores "
        "quota: {name} ({machine}) in {location}. " + _QUOTA
    ),
    ("azure-native", "stockout"): (
        "Code=ZonalAllocationFailed Message=Allocation failed. We do not have sufficient capacity for the requested VM "
        "size: {name} ({machine}) in {location}. " + _OTHER_ZONE
    ),
    ("azure-native", "timed-out"): (
        "Code=OperationTimedOut Message={name} in {location} was not ready in time. " + _TIMEOUT
    ),
    ("gcp", "quota"): (
        "googleapi: Error 403: QUOTA_EXCEEDED - Quota 'GPUS_ALL_REGIONS' exceeded: {name} ({machine}) in {location}. "
        + _QUOTA
    ),
    ("gcp", "stockout"): (
        "Error waiting for instance to create: ZONE_RESOURCE_POOL_EXHAUSTED - The zone does not have enough resources "
        "available to fulfill the request: {name} ({machine}) in {location}. " + _OTHER_ZONE
    ),
    ("gcp", "timed-out"): "Error waiting to create {name} in {location}: timeout while waiting for state. " + _TIMEOUT,
}


def _location(inputs: Properties) -> str:
    zones = inputs.get("zones")
    parts: list[Value] = [inputs.get("zone") or inputs.get("location") or inputs.get("region") or "an unknown region"]
    if isinstance(zones, list) and zones:
        parts.append(f"zone {zones[0]}")
    return " ".join(str(part).rpartition("/")[2] for part in parts)


def _machine(inputs: Properties) -> str:
    hardware = inputs.get("hardwareProfile")
    size = hardware.get("vmSize") if isinstance(hardware, dict) else inputs.get("machineType")
    return str(size or "no machine type").rpartition("/")[2]
