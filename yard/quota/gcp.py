"""Reads the quotas, APIs and machine types of a Google Cloud project."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from components.catalog import images
from components.platforms.gcp.quotas import FILESTORE_QUOTAS
from components.platforms.gcp.services import enable_command, required_services
from components.platforms.gcp.spec import GcpSpec
from yard.quota.verdict import Run, Unanswered, Usage

PROGRAM = "gcloud"
LOGIN = "gcloud auth login"

_FAMILY = re.compile(r"(?P<id>(PREEMPTIBLE-)?GPUS-PER-GPU-FAMILY)\{gpu_family=(?P<family>\w+)\}")
"""Quotas for GPU families, which only the Cloud Quotas API provides. Their dimensions are gpu_family and region."""


def usage(platform: Mapping[str, Any], quotas: Sequence[str], run: Run) -> dict[str, Usage]:
    """Return the usage by quota name. For quotas from the Cloud Quotas API, only the limit is known. Quotas that
    cannot be read are omitted.
    """
    region = _region(platform)
    options = _options(platform)
    answers = [
        run([PROGRAM, "compute", *words, *options])
        for words in (("project-info", "describe"), ("regions", "describe", region))
    ]
    rows = [row for answer in answers for row in answer.get("quotas", [])]
    found = {str(row["metric"]): Usage(used=float(row.get("usage", 0)), limit=float(row["limit"])) for row in rows}
    for quota in filter(_service, quotas):
        with suppress(Unanswered):
            limit = _limit(run(_describe(platform, quota)), quota, region)
            if limit is not None:
                found[quota] = Usage(used=None, limit=limit if limit >= 0 else None)
    return found


def command(platform: Mapping[str, Any], quota: str) -> str:
    """Return the command that shows a quota."""
    if _service(quota) is not None:
        return shlex.join(_describe(platform, quota))
    return f"{PROGRAM} compute regions describe {_region(platform)} --project {platform['project']}"


def notes(platform: Mapping[str, Any], machines: Sequence[str], run: Run) -> Iterator[str]:
    """Yield notes on disabled APIs, an unreadable image, and machine types that the zone does not offer."""
    project, zone = str(platform["project"]), str(platform["zone"])
    options = _options(platform)
    enabled = {str(row["config"]["name"]) for row in run([PROGRAM, "services", "list", "--enabled", *options])}
    if missing := tuple(service for service in required_services() if service not in enabled):
        yield f"these APIs are not enabled: {', '.join(missing)}; run `{enable_command(project, missing)}`"
    yield from _image(platform, run)
    names = f"name=({' '.join(machines)})"
    rows = run([PROGRAM, "compute", "machine-types", "list", "--zones", zone, "--filter", names, *options])
    offered = {str(row["name"]) for row in rows}
    for machine in machines:
        if machine not in offered:
            listing = f"{PROGRAM} compute machine-types list --filter name={machine} --project {project}"
            yield f"{zone} does not offer {machine}; run `{listing}` to list its zones"


def available(platform: Mapping[str, Any], run: Run) -> set[str]:
    """Return the machine types that the zone offers."""
    zone = str(platform["zone"])
    rows = run([PROGRAM, "compute", "machine-types", "list", "--zones", zone, *_options(platform)])
    return {str(row["name"]) for row in rows}


def _image(platform: Mapping[str, Any], run: Run) -> Iterator[str]:
    """Yield a note if the image cannot be read. Google deletes old images."""
    spec = GcpSpec.model_validate(platform)
    reference = spec.custom_image or str(images()[spec.image].reference)
    _, project, _, _, name = reference.split("/")
    shown = [PROGRAM, "compute", "images", "describe", name, "--project", project, "--format", "json"]
    try:
        run(shown)
    except Unanswered as error:
        yield f"the image cannot be read with `{shlex.join(shown)}` ({error}). Fix: set platform.custom_image"


def _options(platform: Mapping[str, Any]) -> list[str]:
    return ["--project", str(platform["project"]), "--format", "json"]


def _region(platform: Mapping[str, Any]) -> str:
    return str(platform["zone"]).rpartition("-")[0]


def _service(quota: str) -> str | None:
    """Return a quota's service in the Cloud Quotas API, or None for quotas in the Compute API."""
    if _FAMILY.fullmatch(quota):
        return "compute.googleapis.com"
    return "file.googleapis.com" if quota in FILESTORE_QUOTAS.values() else None


def _describe(platform: Mapping[str, Any], quota: str) -> list[str]:
    family = _FAMILY.fullmatch(quota)
    identity = f"{family['id']}-per-project-region" if family else quota
    service = ["--service", str(_service(quota))]
    return [PROGRAM, "beta", "quotas", "info", "describe", identity, *service, *_options(platform)]


def _limit(answer: Mapping[str, Any], quota: str, region: str) -> float | None:
    """Return the limit of the quota in the region (QuotaInfo in the Cloud Quotas API v1). -1 means unlimited."""
    family = _FAMILY.fullmatch(quota)
    for row in answer.get("dimensionsInfos", []):
        dimensions = row.get("dimensions", {})
        here = dimensions.get("region") == region or region in row.get("applicableLocations", [])
        if here and (family is None or dimensions.get("gpu_family") == family["family"]):
            return float(row["details"]["value"])
    return None
