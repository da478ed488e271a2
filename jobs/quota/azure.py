"""Quotas, resource providers and sizes of an Azure subscription, from `az`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from components.platforms.azure.services import SERVICES, register_command
from jobs.quota.azure_image import withdrawn
from jobs.quota.verdict import Unanswered, Usage

PROGRAM = "az"
LOGIN = "az login"
Run = Callable[[Sequence[str]], Any]
"""Runs a command and returns its parsed JSON. Raises Unanswered."""

_NETWORK = "PublicIPAddresses"
_NETAPP = "totalTiBsPerSubscription"
_LISTS = {_NETWORK: ("network", "list-usages"), _NETAPP: ("netappfiles", "quota-limit", "list")}
"""Quota -> the command that lists it; all other quotas are in `az vm list-usage`."""


def usage(platform: Mapping[str, Any], quotas: Sequence[str], run: Run) -> dict[str, Usage]:
    """Return the usage by quota name. NetApp's quota has no `used`; what a command does not list is left out."""
    found = _usages(run(_command(platform, ("vm", "list-usage"))))
    for quota in quotas:
        if quota not in _LISTS:
            continue
        try:
            answer = run(_command(platform, _LISTS[quota]))
        except Unanswered:
            continue
        found |= _usages(answer) if quota == _NETWORK else _limits(answer)
    return found


def command(platform: Mapping[str, Any], quota: str) -> str:
    """Return the command that shows a quota."""
    return " ".join(_command(platform, _LISTS.get(quota, ("vm", "list-usage"))))


def notes(platform: Mapping[str, Any], machines: Sequence[str], run: Run) -> Iterator[str]:
    """Yield other obstacles: resource providers that stacks of this platform may need, and sizes not offered."""
    providers = run([PROGRAM, "provider", "list", *_subscription(platform), "--output", "json"])
    registered = {str(row["namespace"]).lower() for row in providers if row["registrationState"] == "Registered"}
    for namespace in sorted(SERVICES.values()):
        if namespace.lower() not in registered:
            yield f"the resource provider {namespace} is not registered; run `{register_command(namespace)}`"
    if problem := withdrawn(platform, run):
        yield problem
    for machine in machines:
        listed = ("vm", "list-skus", "--resource-type", "virtualMachines", "--size", machine, "--all")
        rows = [row for row in run(_command(platform, listed)) if row["name"] == machine]
        if reason := _refused(platform, machine, rows):
            yield f"{reason}; run `{' '.join(_command(platform, listed))}`"


def _refused(platform: Mapping[str, Any], machine: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the subscription cannot use a size (ResourceSkus of the Compute API), or None."""
    region, zone = str(platform["region"]), platform.get("zone")
    if not rows:
        return f"{region} does not offer {machine}"
    zones = {str(one) for info in rows[0].get("locationInfo", []) for one in info.get("zones") or []}
    for restriction in rows[0].get("restrictions") or []:
        if restriction["type"] == "Location":
            return f"this subscription may not use {machine} in {region} ({restriction['reasonCode']})"
        zones -= set((restriction.get("restrictionInfo") or {}).get("zones") or [])
    if zone is not None and zone not in zones:
        return f"this subscription may not use {machine} in zone {zone} of {region}, only in {sorted(zones) or 'none'}"
    return None


def _command(platform: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    return [PROGRAM, *words, "--location", str(platform["region"]), *_subscription(platform), "--output", "json"]


def _subscription(platform: Mapping[str, Any]) -> list[str]:
    chosen = platform.get("subscription")
    return ["--subscription", str(chosen)] if chosen else []


def _usages(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    # az writes the two numbers as text, the API as numbers; -1 stands for no limit.
    return {str(row["name"]["value"]): _usage(float(row["currentValue"]), float(row["limit"])) for row in answer}


def _limits(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    """Return NetApp's limits, which are listed as "eastus/totalTiBsPerSubscription" with the `current` limit."""
    return {str(row["name"]).rpartition("/")[2]: _usage(None, float(row["current"])) for row in answer}


def _usage(used: float | None, limit: float) -> Usage:
    return Usage(used=used, limit=limit if limit >= 0 else None)
