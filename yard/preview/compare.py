"""Compares the descriptions of a stack from two revisions."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from typing import TypedDict

from yard.preview.shape import Description, QuotaShape


class FileDiff(TypedDict):
    """The unified diff of a rendered file. The files in `same_in` contain the same changes."""

    file: str
    same_in: list[str]
    diff: str


class Difference(TypedDict):
    """The difference between the base and the working tree. `usd_per_hour` is None if a price is unknown."""

    new: bool
    usd_per_hour: float | None
    known_usd_per_hour: float
    hosts_added: list[str]
    hosts_removed: list[str]
    quota: list[QuotaShape]
    files: list[FileDiff]


def compare(before: Description | None, after: Description) -> Difference:
    """Return the difference. `before` is None for a new stack, whose files are not compared."""
    old_usd, old_whole = _price(before)
    new_usd, new_whole = _price(after)
    old_hosts, new_hosts = _hosts(before), _hosts(after)
    return Difference(
        new=before is None,
        usd_per_hour=round(new_usd - old_usd, 3) if old_whole and new_whole else None,
        known_usd_per_hour=round(new_usd - old_usd, 3),
        hosts_added=[name for name in new_hosts if name not in old_hosts],
        hosts_removed=[name for name in old_hosts if name not in new_hosts],
        quota=list(_quota(before, after)),
        files=_diffs(before["files"], after["files"]) if before else [],
    )


def _price(described: Description | None) -> tuple[float, bool]:
    """Return the sum of the known prices in dollars per hour, and whether all prices are known."""
    if described is None or described["price"] is None:
        return 0.0, False
    costs = [described["price"]["total"], *(service["usd_per_hour"] for service in described["services"])]
    known = described["price"]["usd"] + sum(cost for cost in costs[1:] if cost is not None)
    return known, None not in costs


def _hosts(described: Description | None) -> list[str]:
    plan = described["plan"] if described else None
    return [host["name"] for host in plan["hosts"]] if plan else []


def _quota(before: Description | None, after: Description) -> Iterator[QuotaShape]:
    old = {(need["quota"], need["place"]): need["amount"] for need in (before["quota"] if before else ())}
    new = {(need["quota"], need["place"]): need["amount"] for need in after["quota"]}
    for quota, place in dict.fromkeys([*new, *old]):
        change = new.get((quota, place), 0) - old.get((quota, place), 0)
        if change:
            yield QuotaShape(quota=quota, place=place, amount=change)


def _diffs(before: dict[str, str], after: dict[str, str]) -> list[FileDiff]:
    """Return the diffs. Files with the same changes share one diff, because all user-data contains the same scripts."""
    found: dict[str, FileDiff] = {}
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        lines = list(unified_diff(old, new, f"base/{name}", f"now/{name}", lineterm=""))
        changed = "\n".join(line for line in lines[2:] if line.startswith(("+", "-")))
        if changed in found:
            found[changed]["same_in"].append(name)
        elif lines:
            found[changed] = FileDiff(file=name, same_in=[], diff="\n".join(lines) + "\n")
    return list(found.values())
