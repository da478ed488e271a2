"""Quotas, APIs and machine types of a GCP project, from `gcloud`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from components.catalog import images
from components.platforms.gcp.quotas import FILESTORE_QUOTAS
from components.platforms.gcp.services import enable_command, required_services
from components.platforms.gcp.spec import Spec
from jobs.quota.verdict import Unanswered, Usage

PROGRAM = "gcloud"
LOGIN = "gcloud auth login"
Run = Callable[[Sequence[str]], Any]
"""Runs a command and returns its parsed JSON. Raises Unanswered."""

_FAMILY = re.compile(r"(?P<id>(PREEMPTIBLE-)?GPUS-PER-GPU-FAMILY)\{gpu_family=(?P<family>\w+)\}")
"""Quotas by GPU family are in the Cloud Quotas API only, as quotas with the dimensions gpu_family and region."""


def usage(platform: Mapping[str, Any], quotas: Sequence[str], run: Run) -> dict[str, Usage]:
    """Return the usage by quota name. A quota of the Cloud Quotas API has no `used`, or is left out if unreadable."""
    region = _region(platform)
    where = ["--project", str(platform["project"]), "--format", "json"]
    answers = (
        run([PROGRAM, "compute", "project-info", "describe", *where]),
        run([PROGRAM, "compute", "regions", "describe", region, *where]),
    )
    rows = [row for answer in answers for row in answer.get("quotas", [])]
    found = {str(row["metric"]): Usage(used=float(row.get("usage", 0)), limit=float(row["limit"])) for row in rows}
    for quota in quotas:
        if _service(quota) is None:
            continue
        try:
            limit = _limit(run(_describe(platform, quota)), quota, region)
        except Unanswered:
            continue
        if limit is not None:
            found[quota] = Usage(used=None, limit=limit if limit >= 0 else None)
    return found


def command(platform: Mapping[str, Any], quota: str) -> str:
    """Return the command that shows a quota."""
    if _service(quota) is not None:
        return shlex.join(_describe(platform, quota))
    return f"{PROGRAM} compute regions describe {_region(platform)} --project {platform['project']}"


def notes(platform: Mapping[str, Any], machines: Sequence[str], run: Run) -> Iterator[str]:
    """Yield other obstacles: APIs that stacks of this platform may need, and machine types that the zone lacks."""
    project, zone = str(platform["project"]), str(platform["zone"])
    where = ["--project", project, "--format", "json"]
    enabled = {str(row["config"]["name"]) for row in run([PROGRAM, "services", "list", "--enabled", *where])}
    if missing := tuple(service for service in required_services() if service not in enabled):
        yield f"these APIs are not enabled: {', '.join(missing)}; run `{enable_command(project, missing)}`"
    yield from _image(platform, run)
    names = f"name=({' '.join(machines)})"
    rows = run([PROGRAM, "compute", "machine-types", "list", "--zones", zone, "--filter", names, *where])
    offered = {str(row["name"]) for row in rows}
    for machine in machines:
        if machine not in offered:
            yield f"{zone} does not offer {machine}; run `{_zones_command(machine, project)}` for zones that do"


def _image(platform: Mapping[str, Any], run: Run) -> Iterator[str]:
    """Yield a note if the image cannot be read: Google deprecates and deletes old images."""
    spec = Spec.model_validate(platform)
    reference = spec.custom_image or str(images()[spec.image].reference)
    _, project, _, _, name = reference.split("/")
    shown = [PROGRAM, "compute", "images", "describe", name, "--project", project, "--format", "json"]
    try:
        run(shown)
    except Unanswered as error:
        yield f"the image cannot be read with `{shlex.join(shown)}` ({error}); set platform.custom_image"


def _zones_command(machine: str, project: str) -> str:
    return f"{PROGRAM} compute machine-types list --filter name={machine} --project {project}"


def _region(platform: Mapping[str, Any]) -> str:
    return str(platform["zone"]).rpartition("-")[0]


def _service(quota: str) -> str | None:
    """Return the service of a quota that only the Cloud Quotas API has, or None."""
    if _FAMILY.fullmatch(quota):
        return "compute.googleapis.com"
    return "file.googleapis.com" if quota in FILESTORE_QUOTAS.values() else None


def _describe(platform: Mapping[str, Any], quota: str) -> list[str]:
    family = _FAMILY.fullmatch(quota)
    identity = f"{family['id']}-per-project-region" if family else quota
    where = ["--service", str(_service(quota)), "--project", str(platform["project"]), "--format", "json"]
    return [PROGRAM, "beta", "quotas", "info", "describe", identity, *where]


def _limit(answer: Mapping[str, Any], quota: str, region: str) -> float | None:
    """Return the limit of the quota in the region (QuotaInfo of the Cloud Quotas API v1); -1 is no limit."""
    family = _FAMILY.fullmatch(quota)
    for row in answer.get("dimensionsInfos", []):
        dimensions = row.get("dimensions", {})
        here = dimensions.get("region") == region or region in row.get("applicableLocations", [])
        if here and (family is None or dimensions.get("gpu_family") == family["family"]):
            return float(row["details"]["value"])
    return None
