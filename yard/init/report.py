"""Prints a new stack with its price, quotas, warnings and the next commands, or returns them as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from components.catalog import HOURS_PER_MONTH
from yard.init.command import NewStack
from yard.preview import content
from yard.preview.report import Report
from yard.preview.shape import Description
from yard.show import say, table

FORMAT = 1
"""Version of the JSON document. Increase it if the meaning of a key changes."""


def as_json(new: NewStack) -> dict[str, Any]:
    """Return the document for --json.

    `usd_per_hour` is the sum of the known list prices, or None if no price is known.
    """
    described = new.description
    known, total = _price(described)
    return {
        "format": FORMAT,
        "stack": new.name,
        "file": described["file"],
        "usd_per_hour": round(known, 3) or None,
        "usd_per_month": round(known * HOURS_PER_MONTH) or None,
        "all_prices_known": total is not None,
        "not_included": content.NOT_INCLUDED,
        **{key: described[key] for key in ("price", "services", "quota", "remarks")},
        "account": new.account and asdict(new.account),
        "host_keys": [asdict(key) for key in new.keys],
        "next": next_commands(new),
    }


def next_commands(new: NewStack) -> list[str]:
    """Return the commands to run next."""
    plan = new.description["plan"]
    # The recipe needs two nodes by default.
    nodes = sum(bool(host["group"]) for host in plan["hosts"]) if plan else 0
    one = " --nodes 1" if nodes == 1 else ""
    return [
        f"yard preview {new.name}",
        *new.login,
        f"pulumi stack select --create {new.name}",
        f"pulumi up -s {new.name}",
        f"yard submit hello --stack {new.name}{one} --follow",
    ]


def show(new: NewStack) -> None:
    """Print the new stack."""
    described = new.description
    report = Report(description=described, resources=None, difference=None, account=new.account)
    say(f"wrote {described['file']}: {_size(described)}")
    if described["price"] and described["plan"] and described["plan"]["place"]:
        for line in (_price_line(described), *content.costs(described)):
            say(f"  {line}")
    for problem in content.checks(report):
        if problem["level"] != "info":
            say(f"  {problem['level']}: {content.check_line(problem)}")
    _show_account(new, report)
    for key in new.keys:
        say(
            f"  {key.target} has the fingerprint {key.fingerprint}; compare it on the host's console: "
            f"ssh-keygen -lf {key.file}"
        )
    if new.login:
        say(f"note: {content.UNPROVED}; start with a small count")
    say("next:")
    for command in next_commands(new):
        say(f"  {command}")


def _show_account(new: NewStack, report: Report) -> None:
    columns, rows = content.quota_table(report)
    if rows:
        say("  required quotas:")
        table(("   ", *columns), (("", *row) for row in rows))
    for note in content.account_notes(report):
        say(f"  note: {note}")


def _size(described: Description) -> str:
    hosts = described["plan"]["hosts"] if described["plan"] else []
    return f"{len(hosts)} hosts, {sum(host['gpus'] for host in hosts)} GPUs"


def _price_line(described: Description) -> str:
    """Return a line with the known list prices per hour and per month, and whether prices are unknown."""
    known, total = _price(described)
    if not known:
        return "list price: unknown"
    unknown = ", plus unknown prices" if total is None else ""
    return f"list price: ${known:.2f}/h (${known * HOURS_PER_MONTH:,.0f} a month){unknown}"


def _price(described: Description) -> tuple[float, float | None]:
    """Return the sum of the known list prices per hour, and the total, which is None if a price is unknown."""
    price, services = described["price"], described["services"]
    parts = [price["total"] if price else None, *(service["usd_per_hour"] for service in services)]
    known = (price["usd"] if price else 0) + sum(service["usd_per_hour"] or 0 for service in services)
    return known, None if None in parts else known
