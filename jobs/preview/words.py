"""The words of a preview, the same on a terminal and in a pull request's comment. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from components.catalog.services import HOURS_PER_MONTH
from jobs.preview.compare import Difference
from jobs.preview.report import Preview, Report, host_ranges
from jobs.preview.shape import Description, HostShape, PlanShape, PriceShape, ProblemShape, StorageShape

HOST_COLUMNS = ("hosts", "addresses", "machine", "GPUs", "fabric", "placement", "capacity")
QUOTA_COLUMNS = ("quota", "place", "needed", "used", "limit", "verdict")


def how(preview: Preview) -> str:
    """Say whom the engine asked, and what is compared."""
    words = "offline: every cloud is simulated" if preview.offline else "live: your backend and your accounts"
    if preview.base_problem:
        return f"{words}; not compared: {preview.base_problem}"
    return f"{words}; compared with {preview.base[:12]}" if preview.base else words


def state(report: Report) -> str:
    """Say in a word what came out."""
    if report.description["problems"]:
        return "refused"
    if report.resources is None or report.resources.errors:
        return "fails"
    return "fine"


def headline(report: Report) -> str:
    """Say a stack in one line: size, money, resources."""
    plan, price = report.description["plan"], report.description["price"]
    if plan is None or price is None:
        count = len(report.description["problems"])
        return f"{count} problem{'s' if count > 1 else ''}"
    gpus = sum(host["gpus"] for host in plan["hosts"])
    parts = [f"{len(plan['hosts'])} hosts", f"{gpus} GPUs", money(report.description)]
    if report.resources and report.resources.steps:
        parts.append(operations(report))
    if report.difference:
        parts.append(change(report.difference))
    return ", ".join(parts)


def money(description: Description) -> str:
    """Return the known price per hour of machines, storage and gateway, and whether a part of it is unknown."""
    price, services = description["price"], description.get("services", [])
    known = (price["usd"] if price else 0) + sum(service["usd_per_hour"] or 0 for service in services)
    if price and price["total"] is not None and all(service["usd_per_hour"] is not None for service in services):
        return f"${known:.2f}/h"
    return f"${known:.2f}/h and unknown prices" if known else "price unknown"


def costs(description: Description) -> Iterator[str]:
    """Yield a line each for the price of machines, storage and gateway, the storage's speed, and what is left out."""
    price = description["price"]
    if price is None:
        return
    if price["usd"]:
        yield f"machines {_dollars(price['usd'])}: {price_source(price)}"
    elif price["unpriced"]:
        yield f"machines: {price_source(price)}"
    services = description.get("services", [])
    for service in services:
        usd = service["usd_per_hour"]
        source = f" by the list price of {service['region']} of {service['priced']}"
        yield f"{service['name']} price unknown" if usd is None else f"{service['name']} {_dollars(usd)}{source}"
    storage = description.get("storage")
    if storage and (services or storage["write_mib_s"] is not None):
        yield _storage(storage)
    if services:
        yield "not included: boot disks, public addresses, NAT, traffic"


def _dollars(usd: float) -> str:
    return f"${usd:.2f}/h (${usd * HOURS_PER_MONTH:,.0f} a month)"


def _storage(storage: StorageShape) -> str:
    rate, gpus, checkpoint = storage["write_mib_s"], storage["gpus"], storage["checkpoint"]
    parts = [f"storage {storage['kind']}: write throughput unknown"]
    if rate is not None:
        parts = [f"storage {storage['kind']}, {storage['size_gib']} GiB: writes at most {rate:.0f} MiB/s"]
        if gpus:
            parts.append(f"{rate / gpus:.0f} MiB/s for each of {gpus} GPUs")
    if checkpoint and checkpoint["minutes"] is not None:
        parts.append(f"{checkpoint['minutes']:.1f} minutes for a checkpoint of {checkpoint['model']}")
        parts[-1] += f" ({checkpoint['gb']:.0f} GB)"
    return ", ".join(parts)


def price_source(price: PriceShape) -> str:
    """Say whose prices they are, how old, and what they leave out."""
    regions = f" of {', '.join(price['regions'])}" if price.get("regions") else ""
    read = f"by list prices{regions} read {price['dated']}" if price["dated"] else ""
    unknown = f"no price is recorded for {', '.join(price['unpriced'])}" if price["unpriced"] else ""
    return "; ".join(filter(None, [read, unknown]))


def user_data(report: Report) -> str:
    """Say how much of what a platform takes the machines are given."""
    sizes = ", ".join(f"{role} {size:,}" for role, size in report.description["user_data_bytes"].items())
    return f"user-data: {sizes} of {report.description['user_data_limit']:,} bytes"


def change(difference: Difference) -> str:
    """Say in a few words how a stack differs from the base."""
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
        parts.append("other files on the nodes")
    return ", ".join(parts) or "as the base"


def operations(report: Report) -> str:
    """Say what the engine would do: '21 to create'."""
    counts = report.resources.by_operation if report.resources else {}
    return ", ".join(f"{count} unchanged" if op == "same" else f"{count} to {op}" for op, count in counts.items())


def host_rows(plan: PlanShape) -> Iterator[tuple[str, ...]]:
    """Yield one row for the head and one for each group, by HOST_COLUMNS."""
    for _, members in groupby(plan["hosts"], key=lambda host: (host["role"], host["group"])):
        yield _host_row(list(members))


def quota_rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield one row for each quota, by QUOTA_COLUMNS. Without an account's answer there is no verdict."""
    verdicts = report.account.verdicts if report.account else ()
    known = {(verdict.quota, verdict.place): verdict for verdict in verdicts}
    for need in report.description["quota"]:
        verdict = known.get((need["quota"], need["place"]))
        words = ("", "", "")
        if verdict and verdict.short_by is not None:
            limit = "none" if verdict.limit is None else f"{verdict.limit:g}"
            used = "unknown" if verdict.used is None else f"{verdict.used:g}"
            words = (used, limit, f"short by {verdict.short_by:g}" if verdict.short_by else "enough")
        elif verdict:
            words = ("unknown", "unknown", f"run `{verdict.command}`")
        yield need["quota"], need["place"], str(need["amount"]), *words


def checks(report: Report) -> list[ProblemShape]:
    """Return problems first, then warnings, then notes, without the notes on price and quota, which have own lines."""
    found = [*report.description["problems"], *report.description["remarks"]]
    order = ("error", "warning", "info")
    return sorted(
        (problem for problem in found if problem["check"] not in {"price", "quota"}),
        key=lambda problem: order.index(problem["level"]),
    )


def check_line(problem: ProblemShape) -> str:
    """Say one finding: place, rule, fix and the id that `silence` takes."""
    own = f" [{problem['check']}]" if problem["check"] else ""
    return f"{problem['path']}: {problem['rule'].rstrip('.')}. Fix: {problem['fix'].rstrip('.')}.{own}"


def _host_row(hosts: list[HostShape]) -> tuple[str, ...]:
    first, last = hosts[0], hosts[-1]
    ips = first["ip"] if first is last else f"{first['ip']} to {last['ip']}"
    gpus = f"{first['gpus']} x {first['gpu_type']}" if first["gpus"] else "none"
    names = ", ".join(host_ranges([host["name"] for host in hosts]))
    return names, ips, first["machine"], gpus, first["fabric"], first["placement"], first["capacity"]
