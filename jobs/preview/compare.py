"""What differs between a stack at two revisions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from typing import TypedDict

from jobs.preview.shape import Description, QuotaShape


class FileDiff(TypedDict):
    """A rendered file that differs: its unified diff, and the files that differ in the same lines."""

    file: str
    same_in: list[str]
    diff: str


class Difference(TypedDict):
    """From the base to now. `usd_per_hour` is None if a part of either side's price is unknown.

    Storage and gateway count if both sides list them: older revisions do not.
    """

    new: bool
    usd_per_hour: float | None
    known_usd_per_hour: float
    hosts_added: list[str]
    hosts_removed: list[str]
    quota: list[QuotaShape]
    files: list[FileDiff]


def compare(before: Description | None, after: Description) -> Difference:
    """Return the difference. `before` is None where the base has no such stack: then everything but text is new."""
    services = before is not None and "services" in before and "services" in after
    old_usd, old_whole = _price(before, services=services)
    new_usd, new_whole = _price(after, services=services)
    old_hosts, new_hosts = _hosts(before), _hosts(after)
    return Difference(
        new=before is None,
        usd_per_hour=round(new_usd - old_usd, 3) if old_whole and new_whole else None,
        known_usd_per_hour=round(new_usd - old_usd, 3),
        hosts_added=[name for name in new_hosts if name not in old_hosts],
        hosts_removed=[name for name in old_hosts if name not in new_hosts],
        quota=list(_quota(before, after)),
        files=_joined(list(_diffs(before["files"], after["files"]))) if before else [],
    )


def _price(described: Description | None, *, services: bool) -> tuple[float, bool]:
    """Return the known dollars per hour, and whether that is all."""
    price = described["price"] if described else None
    if described is None or price is None:
        return 0.0, False
    costs = [service["usd_per_hour"] for service in described.get("services", [])] if services else []
    known = price["usd"] + sum(cost for cost in costs if cost is not None)
    return known, price["total"] is not None and None not in costs


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


def _diffs(before: dict[str, str], after: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, diff and the changed lines alone of each file that differs."""
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        if old == new:
            continue
        lines = list(unified_diff(old, new, f"base/{name}", f"now/{name}", lineterm="", n=3))
        changed = [line for line in lines[2:] if line.startswith(("+", "-"))]
        yield name, "\n".join(lines) + "\n", "\n".join(changed)


def _joined(diffs: list[tuple[str, str, str]]) -> list[FileDiff]:
    """A shipped script stands in every role's user-data: its change is shown once."""
    by_change: dict[str, FileDiff] = {}
    for name, diff, changed in diffs:
        if changed in by_change:
            by_change[changed]["same_in"].append(name)
        else:
            by_change[changed] = FileDiff(file=name, same_in=[], diff=diff)
    return list(by_change.values())
