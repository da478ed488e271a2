"""Reads the quotas, APIs and machine types of an Azure subscription or a Google Cloud project with the cloud's CLI."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from components.catalog import images
from components.platforms.azure.facts import SERVICES, register_command
from components.platforms.azure.spec import AzureSpec
from components.platforms.gcp.facts import FILESTORE_QUOTAS, enable_command, required_services
from components.platforms.gcp.spec import GcpSpec


class Unanswered(Exception):
    """The cloud's CLI failed or could not be started. The message states the reason."""


Run = Callable[[Sequence[str]], Any]
"""A function that runs a command and returns its parsed JSON. It raises Unanswered if the command fails."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A quota's usage and limit. `used` is None if it is not reported, and `limit` is None if there is no limit."""

    used: float | None
    limit: float | None


_NETWORK = "PublicIPAddresses"
_NETAPP = "totalTiBsPerSubscription"
_LISTS = {_NETWORK: ("network", "list-usages"), _NETAPP: ("netappfiles", "quota-limit", "list")}
"""Commands for the quotas that `az vm list-usage` does not list."""


class AzureCli:
    """The Azure CLI's commands. `login` is the command that logs in."""

    program = "az"
    login = "az login"

    def __init__(self, platform: AzureSpec, run: Run) -> None:
        self._platform = platform
        self._run = run

    def usage(self, quotas: Sequence[str]) -> dict[str, Usage]:
        """Return a mapping from quota to usage, without unreadable quotas. For NetApp, Azure reports only the limit."""
        found = _azure_usages(self._run(self._words("vm", "list-usage")))
        for quota in _LISTS.keys() & set(quotas):
            with suppress(Unanswered):
                answer = self._run(self._words(*_LISTS[quota]))
                found |= _azure_usages(answer) if quota == _NETWORK else _netapp_limits(answer)
        return found

    def command(self, quota: str) -> str:
        """Return the command that shows a quota."""
        return " ".join(self._words(*_LISTS.get(quota, ("vm", "list-usage"))))

    def notes(self, machines: Sequence[str]) -> Iterator[str]:
        """Yield notes on unregistered resource providers, a withdrawn image and unavailable VM sizes."""
        providers = self._run(["az", "provider", "list", *self._subscription(), "--output", "json"])
        registered = {str(row["namespace"]).lower() for row in providers if row["registrationState"] == "Registered"}
        for namespace in sorted(SERVICES.values()):
            if namespace.lower() not in registered:
                yield f"the resource provider {namespace} is not registered; run `{register_command(namespace)}`"
        yield from self._withdrawn_image()
        for machine in machines:
            words = self._words("vm", "list-skus", "--resource-type", "virtualMachines", "--size", machine, "--all")
            rows = [row for row in self._run(words) if row["name"] == machine]
            if reason := self._refused(machine, rows):
                yield f"{reason}; run `{' '.join(words)}`"

    def _withdrawn_image(self) -> Iterator[str]:
        """Yield a note if Azure no longer offers the image in the region. Custom images are not checked.

        Publishers withdraw old versions from the marketplace. The creation of machines then fails with the error
        "PlatformImageNotFound" (hashicorp/packer issue 10600, read 2026-11-22).
        """
        spec = self._platform
        if spec.custom_image is not None:
            return
        publisher, offer, sku, version = spec.image_reference(str(images()[spec.image].reference)).split(":")
        image = ("--publisher", publisher, "--offer", offer, "--sku", sku, "--all")
        # `az` also lists SKUs whose names contain the given name.
        rows = [row for row in self._run(self._words("vm", "image", "list", *image)) if row["sku"] == sku]
        offered = sorted((str(row["version"]) for row in rows), key=_version_key)
        if version not in offered:
            newest = ", ".join(offered[-3:]) or "none"
            yield (
                f"Azure does not offer version {version} of the image {publisher}:{offer}:{sku} in {spec.region}, so "
                "it cannot create machines. Fix: set cluster.platform.image_version to an offered version (newest: "
                f"{newest}). Existing machines keep their image"
            )

    def _refused(self, machine: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why the subscription cannot use a VM size, or None if it can (ResourceSkus in the Compute API)."""
        region, zone = self._platform.region, self._platform.zone
        if not rows:
            return f"{region} does not offer {machine}"
        zones = {str(one) for info in rows[0].get("locationInfo", []) for one in info.get("zones") or []}
        for restriction in rows[0].get("restrictions") or []:
            if restriction["type"] == "Location":
                return f"this subscription may not use {machine} in {region} ({restriction['reasonCode']})"
            zones -= set((restriction.get("restrictionInfo") or {}).get("zones") or [])
        if zone is not None and zone not in zones:
            usable = sorted(zones) or "none"
            return f"this subscription may not use {machine} in zone {zone} of {region}, only in {usable}"
        return None

    def _words(self, *words: str) -> list[str]:
        return ["az", *words, "--location", self._platform.region, *self._subscription(), "--output", "json"]

    def _subscription(self) -> list[str]:
        chosen = self._platform.subscription
        return ["--subscription", chosen] if chosen else []


def _version_key(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _azure_usages(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    # `az` prints the API's numbers as strings.
    return {
        str(row["name"]["value"]): Usage(used=float(row["currentValue"]), limit=_limit(row["limit"])) for row in answer
    }


def _netapp_limits(answer: Sequence[Mapping[str, Any]]) -> dict[str, Usage]:
    # Names have the form "eastus/totalTiBsPerSubscription", and `current` contains the limit.
    return {str(row["name"]).rpartition("/")[2]: Usage(used=None, limit=_limit(row["current"])) for row in answer}


def _limit(value: Any) -> float | None:
    """Return the limit, or None if the quota is unlimited. Both clouds use -1 for unlimited quotas."""
    return float(value) if float(value) >= 0 else None


_FAMILY = re.compile(r"(?P<id>(PREEMPTIBLE-)?GPUS-PER-GPU-FAMILY)\{gpu_family=(?P<family>\w+)\}")
"""Quotas for GPU families. Only the Cloud Quotas API reports them, with the dimensions gpu_family and region."""


class GcloudCli:
    """The Google Cloud CLI's commands. `login` is the command that logs in."""

    program = "gcloud"
    login = "gcloud auth login"

    def __init__(self, platform: GcpSpec, run: Run) -> None:
        self._platform = platform
        self._run = run
        self._region = platform.zone.rpartition("-")[0]
        self._options = ["--project", platform.project, "--format", "json"]

    def usage(self, quotas: Sequence[str]) -> dict[str, Usage]:
        """Return a mapping from quota to usage, without unreadable quotas. The Cloud Quotas API reports only limits."""
        scopes = (("project-info", "describe"), ("regions", "describe", self._region))
        answers = [self._run(["gcloud", "compute", *scope, *self._options]) for scope in scopes]
        rows = [row for answer in answers for row in answer.get("quotas", [])]
        found = {str(row["metric"]): Usage(used=float(row.get("usage", 0)), limit=float(row["limit"])) for row in rows}
        for quota in filter(_quota_service, quotas):
            with suppress(Unanswered):
                if usage := self._listed(self._run(self._describe(quota)), quota):
                    found[quota] = usage
        return found

    def command(self, quota: str) -> str:
        """Return the command that shows a quota."""
        if _quota_service(quota) is not None:
            return shlex.join(self._describe(quota))
        return f"gcloud compute regions describe {self._region} --project {self._platform.project}"

    def notes(self, machines: Sequence[str]) -> Iterator[str]:
        """Yield notes on disabled APIs, an unreadable image and machine types that the zone does not offer."""
        project, zone = self._platform.project, self._platform.zone
        services = self._run(["gcloud", "services", "list", "--enabled", *self._options])
        enabled = {str(row["config"]["name"]) for row in services}
        if missing := tuple(service for service in required_services() if service not in enabled):
            yield f"these APIs are not enabled: {', '.join(missing)}; run `{enable_command(project, missing)}`"
        yield from self._unreadable_image()
        words = ["--zones", zone, "--filter", f"name=({' '.join(machines)})", *self._options]
        offered = {str(row["name"]) for row in self._run(["gcloud", "compute", "machine-types", "list", *words])}
        for machine in machines:
            if machine not in offered:
                listing = f"gcloud compute machine-types list --filter name={machine} --project {project}"
                yield f"{zone} does not offer {machine}; run `{listing}` to list its zones"

    def _unreadable_image(self) -> Iterator[str]:
        """Yield a note if the image cannot be read, for example because Google has deleted it."""
        reference = self._platform.custom_image or str(images()[self._platform.image].reference)
        _, project, _, _, name = reference.split("/")
        words = ["gcloud", "compute", "images", "describe", name, "--project", project, "--format", "json"]
        try:
            self._run(words)
        except Unanswered as error:
            yield f"the image cannot be read with `{shlex.join(words)}` ({error}). Fix: set platform.custom_image"

    def _describe(self, quota: str) -> list[str]:
        family = _FAMILY.fullmatch(quota)
        name = f"{family['id']}-per-project-region" if family else quota
        service = ["--service", str(_quota_service(quota))]
        return ["gcloud", "beta", "quotas", "info", "describe", name, *service, *self._options]

    def _listed(self, answer: Mapping[str, Any], quota: str) -> Usage | None:
        """Return the quota's limit in the region (QuotaInfo in the Cloud Quotas API v1)."""
        family = _FAMILY.fullmatch(quota)
        for row in answer.get("dimensionsInfos", []):
            dimensions = row.get("dimensions", {})
            here = dimensions.get("region") == self._region or self._region in row.get("applicableLocations", [])
            if here and (family is None or dimensions.get("gpu_family") == family["family"]):
                return Usage(used=None, limit=_limit(row["details"]["value"]))
        return None


def _quota_service(quota: str) -> str | None:
    """Return the quota's service in the Cloud Quotas API, or None if the Compute API reports the quota."""
    if _FAMILY.fullmatch(quota):
        return "compute.googleapis.com"
    return "file.googleapis.com" if quota in FILESTORE_QUOTAS.values() else None
