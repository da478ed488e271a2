"""Reads the quotas, resource providers and VM sizes in an Azure subscription."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from components.catalog import images
from components.platforms.azure.services import SERVICES, register_command
from components.platforms.azure.spec import AzureSpec
from yard.quota.verdict import Run, Unanswered, Usage

PROGRAM = "az"
LOGIN = "az login"

_NETWORK = "PublicIPAddresses"
_NETAPP = "totalTiBsPerSubscription"
_LISTS = {_NETWORK: ("network", "list-usages"), _NETAPP: ("netappfiles", "quota-limit", "list")}
"""Commands that list these quotas. `az vm list-usage` lists all other quotas."""


def usage(platform: Mapping[str, Any], quotas: Sequence[str], run: Run) -> dict[str, Usage]:
    """Return the usage by quota name. Quotas that cannot be read are omitted. For NetApp,
    Azure reports only the limit."""
    found = _usages(run(_command(platform, ("vm", "list-usage"))))
    for quota in _LISTS.keys() & set(quotas):
        with suppress(Unanswered):
            answer = run(_command(platform, _LISTS[quota]))
            found |= _usages(answer) if quota == _NETWORK else _limits(answer)
    return found


def command(platform: Mapping[str, Any], quota: str) -> str:
    """Return the command that shows a quota."""
    return " ".join(_command(platform, _LISTS.get(quota, ("vm", "list-usage"))))


def notes(platform: Mapping[str, Any], machines: Sequence[str], run: Run) -> Iterator[str]:
    """Yield notes on unregistered resource providers, a withdrawn image, and unavailable VM sizes."""
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


def available(platform: Mapping[str, Any], run: Run) -> set[str]:
    """Return the VM sizes that the subscription can use in the region.

    Without --all, `az` lists only these sizes (azure-cli, help of `az vm list-skus --all`, read 2026-11-22).
    """
    rows = run(_command(platform, ("vm", "list-skus", "--resource-type", "virtualMachines")))
    return {str(row["name"]) for row in rows}


def withdrawn(platform: Mapping[str, Any], run: Run) -> str | None:
    """Return a problem if Azure does not offer the image in the region, or None. Custom images are not checked.

    Publishers withdraw old versions from the marketplace. New machines then fail with the error "PlatformImageNotFound"
    (hashicorp/packer issue 10600, read 2026-11-22).
    """
    spec = AzureSpec.model_validate(platform)
    if spec.custom_image is not None:
        return None
    publisher, offer, sku, version = spec.image_reference(str(images()[spec.image].reference)).split(":")
    listed = ("vm", "image", "list", "--publisher", publisher, "--offer", offer, "--sku", sku, "--all")
    # `az` also lists SKUs whose names contain the given name.
    rows = [row for row in run(_command(platform, listed)) if row["sku"] == sku]
    offered = sorted((str(row["version"]) for row in rows), key=_version_key)
    if version in offered:
        return None
    newest = ", ".join(offered[-3:]) or "none"
    return (
        f"Azure does not offer version {version} of the image {publisher}:{offer}:{sku} in {spec.region}, so it cannot "
        f"create machines. Fix: set cluster.platform.image_version to an offered version (newest: {newest}). "
        "Existing machines keep their image"
    )


def _version_key(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _refused(platform: Mapping[str, Any], machine: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason why the subscription cannot use a VM size, or None (ResourceSkus in the Compute API)."""
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


def _command(platform: Mapping[str, Any], arguments: Sequence[str]) -> list[str]:
    return [PROGRAM, *arguments, "--location", str(platform["region"]), *_subscription(platform), "--output", "json"]


def _subscription(platform: Mapping[str, Any]) -> list[str]:
    chosen = platform.get("subscription")
    return ["--subscription", str(chosen)] if chosen else []


def _usages(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    # `az` prints numbers from the API as strings.
    return {str(row["name"]["value"]): _usage(float(row["currentValue"]), float(row["limit"])) for row in answer}


def _limits(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    """Return the NetApp limits by quota name. An answer contains names such as "eastus/totalTiBsPerSubscription". The
    limit is in `current`."""
    return {str(row["name"]).rpartition("/")[2]: _usage(None, float(row["current"])) for row in answer}


def _usage(used: float | None, limit: float) -> Usage:
    return Usage(used=used, limit=limit if limit >= 0 else None)  # -1 means unlimited
