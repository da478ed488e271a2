"""Quotas of a GCP project, from `gcloud compute`: those of the region, and those that all regions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.quota.verdict import Usage

PROGRAM = "gcloud"
LOGIN = "gcloud auth login"


def usage(platform: Mapping[str, Any], run: Callable[[Sequence[str]], Any]) -> dict[str, Usage]:
    """Return every quota by its metric's name. `run` gives the parsed JSON of a command.

    Quotas by GPU family are not among them: gcloud compute does not list those.
    """
    region = str(platform["zone"]).rpartition("-")[0]
    where = ["--project", str(platform["project"]), "--format", "json"]
    answers = (
        run([PROGRAM, "compute", "project-info", "describe", *where]),
        run([PROGRAM, "compute", "regions", "describe", region, *where]),
    )
    rows = [row for answer in answers for row in answer.get("quotas", [])]
    return {str(row["metric"]): Usage(used=float(row.get("usage", 0)), limit=float(row["limit"])) for row in rows}
