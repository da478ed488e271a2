"""Text and table rows in a preview, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from components.catalog import HOURS_PER_MONTH
from yard.preview.compare import Difference, FileDiff
from yard.preview.report import Preview, Report, host_ranges
from yard.preview.resources import Resources
from yard.preview.shape import Description, PlanShape, PriceShape, ProblemShape, StorageShape

HOST_COLUMNS = ("hosts", "addresses", "machine", "GPUs", "fabric", "placement", "capacity")
CHANGE_COLUMNS = ("operation", "type", "name")
NOT_INCLUDED = "boot disks, public IP addresses, NAT, network traffic, discounts, taxes"
"""Costs that the prices in a preview do not include."""
UNPROVED = "no stack has been created on a real Azure or Google Cloud yet (docs/verification.md)"
"""`yard init` and offline previews print this note. Remove it after the first `up` on both clouds."""

_QUOTA_COLUMNS = ("quota", "region", "needed", "used", "limit", "result")
_LEVELS = ("error", "warning", "info")


def mode(preview: Preview) -> str:
    """Return a line with the mode, offline or live, and the base of the comparison."""
    offline = f"offline: the clouds are simulated; {UNPROVED}"
    text = offline if preview.offline else "live: with your backend and your cloud accounts"
    if preview.base_problem:
        return f"{text}; not compared: {preview.base_problem}"
    return f"{text}; compared with {preview.base[:12]}" if preview.base else text


def state(report: Report) -> str:
    """Return "fine", "refused" for a file that breaks rules, or "fails" for an engine error."""
    if report.description["problems"]:
        return "refused"
    return "fine" if report.fine else "fails"


def headline(report: Report) -> str:
    """Return a line with the number of hosts and GPUs, the list price, the operations and the difference."""
    plan, price = report.description["plan"], report.description["price"]
    if plan is None or price is None:
        count = len(report.description["problems"])
        return f"{count} problem{'s' if count > 1 else ''}"
    gpus = sum(host["gpus"] for host in plan["hosts"])
    parts = [f"{len(plan['hosts'])} hosts", f"{gpus} GPUs", total_price(report.description)]
    if report.resources and report.resources.steps:
        parts.append(operations(report))
    if report.difference:
        parts.append(change(report.difference))
    return ", ".join(parts)


def total_price(description: Description) -> str:
    """Return the list price of machines, storage and gateway per hour. The text mentions unknown prices."""
    price, services = description["price"], description["services"]
    known = (price["usd"] if price else 0) + sum(service["usd_per_hour"] or 0 for service in services)
    if price and price["total"] is not None and all(service["usd_per_hour"] is not None for service in services):
        return f"list price ${known:.2f}/h"
    return f"list price ${known:.2f}/h plus unknown prices" if known else "list price unknown"


def costs(description: Description) -> Iterator[str]:
    """Yield lines with the prices of machines, storage and gateway, and with the throughput of the storage."""
    price = description["price"]
    if price is None:
        return
    if price["usd"]:
        yield f"machines {_dollars(price['usd'])}: {price_source(price)}"
    elif price["unpriced"]:
        yield f"machines: {price_source(price)}"
    if _has_spot_price(description):
        yield "Spot prices change at any time; the recorded ones were valid on the date of their source"
    services = description["services"]
    for service in services:
        usd = service["usd_per_hour"]
        listed = f"list price of {service['region']}, dated {service['priced']}"
        yield f"{service['name']}: price unknown" if usd is None else f"{service['name']} {_dollars(usd)}: {listed}"
    storage = description["storage"]
    if storage and (services or storage["write_mib_s"] is not None):
        yield _storage(storage)
    if services or price["usd"]:
        yield f"not included: {NOT_INCLUDED}"


def _has_spot_price(description: Description) -> bool:
    plan, price = description["plan"], description["price"]
    unpriced = price["unpriced"] if price else []
    spot = {f"{host['machine']} (Spot)" for host in plan["hosts"] if host["capacity"] == "spot"} if plan else set()
    return bool(spot.difference(unpriced))


def _dollars(usd: float) -> str:
    return f"${usd:.2f}/h (${usd * HOURS_PER_MONTH:,.0f} a month)"


def _storage(storage: StorageShape) -> str:
    rate, gpus, checkpoint = storage["write_mib_s"], storage["gpus"], storage["checkpoint"]
    if rate is None:
        return f"storage {storage['kind']}: maximum write throughput unknown"
    parts = [f"storage {storage['kind']}, {storage['size_gib']} GiB: maximum write throughput {rate:.0f} MiB/s"]
    if gpus:
        parts.append(f"{rate / gpus:.0f} MiB/s for each of {gpus} GPUs")
    if checkpoint and checkpoint["minutes"] is not None:
        size = f"{checkpoint['model']} ({checkpoint['gb']:.0f} GB)"
        parts.append(f"{checkpoint['minutes']:.1f} minutes to write a checkpoint of {size}")
    return ", ".join(parts)


def price_source(price: PriceShape) -> str:
    """Return the regions, date and sources of the machine prices, and the machine types with an unknown price."""
    regions, sources = ", ".join(price["regions"]), ", ".join(price["sources"])
    read = f"list prices of {regions}, read on {price['dated']} from {sources}" if price["dated"] else ""
    unknown = f"price unknown for {', '.join(price['unpriced'])}" if price["unpriced"] else ""
    return "; ".join(filter(None, [read, unknown]))


def user_data_sizes(report: Report) -> str:
    """Return the size of each role's user-data, and the platform's maximum."""
    sizes = ", ".join(f"{role} {size:,}" for role, size in report.description["user_data_bytes"].items())
    return f"user-data: {sizes} of at most {report.description['user_data_limit']:,} bytes"


def change(difference: Difference) -> str:
    """Return a line with the difference from the base."""
    if difference["new"]:
        return "new stack"
    parts = []
    if difference["usd_per_hour"]:
        parts.append(f"{difference['usd_per_hour']:+.2f} $/h")
    elif difference["usd_per_hour"] is None and difference["known_usd_per_hour"]:
        parts.append(f"{difference['known_usd_per_hour']:+.2f} $/h of known prices")
    if difference["hosts_added"]:
        parts.append("adds " + ", ".join(host_ranges(difference["hosts_added"])))
    if difference["hosts_removed"]:
        parts.append("removes " + ", ".join(host_ranges(difference["hosts_removed"])))
    if difference["files"]:
        parts.append("changes files on the nodes")
    return ", ".join(parts) or "no difference"


def operations(report: Report) -> str:
    """Return the number of resources by operation, for example '21 to create'."""
    counts = report.resources.by_operation if report.resources else {}
    return ", ".join(f"{count} unchanged" if op == "same" else f"{count} to {op}" for op, count in counts.items())


def host_rows(plan: PlanShape) -> Iterator[tuple[str, ...]]:
    """Yield a row for the head and for each group. The columns are HOST_COLUMNS."""
    for _, members in groupby(plan["hosts"], key=lambda host: (host["role"], host["group"])):
        hosts = list(members)
        first, last = hosts[0], hosts[-1]
        names = ", ".join(host_ranges([host["name"] for host in hosts]))
        ips = first["ip"] if first is last else f"{first['ip']} to {last['ip']}"
        gpus = f"{first['gpus']} x {first['gpu_type']}" if first["gpus"] else "none"
        yield names, ips, first["machine"], gpus, first["fabric"], first["placement"], first["capacity"]


def quota_table(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns and rows of the required quotas, with usage and limits if the account was read."""
    rows = list(_quota_rows(report))
    if report.account and not report.account.problem:
        return _QUOTA_COLUMNS, rows
    return _QUOTA_COLUMNS[:3], [row[:3] for row in rows]


def account_notes(report: Report) -> list[str]:
    """Return the notes about the account, or the reason why the quotas could not be read."""
    if report.account is None:
        return []
    if report.account.problem:
        return [f"quotas were not checked, because the account could not be read: {report.account.problem}"]
    return list(report.account.notes)


def change_rows(resources: Resources) -> list[tuple[str, ...]]:
    """Return a row for each changed resource, except created resources. The columns are CHANGE_COLUMNS."""
    return [(step.op, step.type, step.name) for step in resources.changes if step.op != "create"]


def diff_title(diff: FileDiff) -> str:
    """Return the name of the file, and the names of the files with the same changes."""
    return diff["file"] + (f" (same change in {', '.join(diff['same_in'])})" if diff["same_in"] else "")


def _quota_rows(report: Report) -> Iterator[tuple[str, ...]]:
    verdicts = report.account.verdicts if report.account else ()
    known = {(verdict.quota, verdict.place): verdict for verdict in verdicts}
    for need in report.description["quota"]:
        verdict = known.get((need["quota"], need["place"]))
        account = ("", "", "")
        if verdict and verdict.short_by is not None:
            limit = "no limit" if verdict.limit is None else f"{verdict.limit:g}"
            used = "unknown" if verdict.used is None else f"{verdict.used:g}"
            account = (used, limit, f"short by {verdict.short_by:g}" if verdict.short_by else "enough")
        elif verdict:
            account = ("unknown", "unknown", f"run `{verdict.command}`")
        yield need["quota"], need["place"], str(need["amount"]), *account


def checks(report: Report) -> list[ProblemShape]:
    """Return errors, then warnings, then notes. Notes about prices and quotas are omitted, because tables show them."""
    found = [*report.description["problems"], *report.description["remarks"]]
    return sorted(
        (problem for problem in found if problem["check"] not in {"price", "quota"}),
        key=lambda problem: _LEVELS.index(problem["level"]),
    )


def check_line(problem: ProblemShape) -> str:
    """Return the path, the rule and the fix of a problem, and the id of its check."""
    check = f" [{problem['check']}]" if problem["check"] else ""
    return f"{problem['path']}: {problem['rule'].rstrip('.')}. Fix: {problem['fix'].rstrip('.')}.{check}"
