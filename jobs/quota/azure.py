"""Quotas of an Azure subscription in a region, from `az vm list-usage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.quota.verdict import Usage

PROGRAM = "az"
LOGIN = "az login"


def usage(platform: Mapping[str, Any], run: Callable[[Sequence[str]], Any]) -> dict[str, Usage]:
    """Return every quota of the region by name. `run` gives the parsed JSON of a command."""
    chosen = platform.get("subscription")
    where = ["--subscription", chosen] if chosen else []
    answer = run([PROGRAM, "vm", "list-usage", "--location", str(platform["region"]), *where, "--output", "json"])
    # az writes the two numbers as text, the API as numbers; -1 stands for no limit.
    return {str(row["name"]["value"]): _usage(float(row["currentValue"]), float(row["limit"])) for row in answer}


def _usage(used: float, limit: float) -> Usage:
    return Usage(used=used, limit=limit if limit >= 0 else None)
