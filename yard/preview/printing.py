"""Prints a preview on the terminal, or as a pull request comment that contains a collapsible block for each stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from components.catalog import HOURS_PER_MONTH
from components.plan.check import Finding, Level
from components.plan.plan import ClusterPlan
from components.platforms.demand import (
    hourly_price,
    known_usd,
    services,
    spot_priced,
    storage_mib_s,
    traffic,
    unpriced,
    used_prices,
    used_sources,
)
from components.platforms.registry import platform_facts
from yard.preview.difference import Difference, FileDiff
from yard.preview.report import Preview, Report, capacity
from yard.show import console as standard_console

NOT_INCLUDED = "discounts, taxes"
UNPROVED = "no stack has been created on a real Azure or Google Cloud yet (docs/verification.md)"
"""A note that offline previews and `yard init` print until both clouds have been tested."""
_LONGEST_MONTH = 31
"""Days."""
LONGEST = 65_000
"""GitHub rejects comments with more than 65,536 characters."""
MARKER = "<!-- trainyard-preview -->"
"""The comment's first line. The workflow searches for this line to find the earlier comment and replace it."""

_HOST_COLUMNS = ("hosts", "addresses", "machine", "GPUs", "fabric", "placement", "capacity")
_QUOTA_COLUMNS = ("quota", "region", "needed", "used", "limit", "result")
_STYLES = {"error": "red", "warning": "yellow", "info": "dim", "note": "yellow"}
_LABELS = {"error": "Error", "warning": "Warning", "info": "Note", "note": "Note"}
_LONGEST_DIFF = 12_000
_CUT = "\n... truncated; `yard preview --against BASE` shows the whole diff\n"


@dataclass(frozen=True)
class Line:
    """A line of text. `level` is empty unless the line is a message."""

    text: str
    level: str = ""


@dataclass(frozen=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def mode(preview: Preview) -> str:
    """Return a text that says whether the preview is offline or live, and which commit it was compared with."""
    offline = f"offline: the clouds are simulated; {UNPROVED}"
    text = offline if preview.offline else "live: with your backend and your cloud accounts"
    if preview.base_problem:
        return f"{text}; not compared: {preview.base_problem}"
    return f"{text}; compared with {preview.base[:12]}" if preview.base else text


def state(report: Report) -> str:
    """Return "fine", "refused" if the file breaks rules, or "fails" if the engine reports an error."""
    if report.description.plan is None:
        return "refused"
    return "fine" if report.fine else "fails"


def headline(report: Report) -> str:
    """Return one line with the numbers of hosts and GPUs, the list price, the operations and the difference."""
    plan = report.description.plan
    if plan is None:
        count = len(report.description.findings)
        return f"{count} problem{'s' if count > 1 else ''}"
    parts = [f"{len(plan.hosts)} hosts", f"{sum(host.machine.gpus for host in plan.hosts)} GPUs", total_price(plan)]
    if report.resources and report.resources.steps:
        parts.append(_operations(report))
    if report.difference:
        parts.append(_change(report.difference))
    return ", ".join(parts)


def total_price(plan: ClusterPlan) -> str:
    """Return the hourly list price of machines and services, and whether some prices are unknown."""
    known = known_usd(plan)
    if not unpriced(plan):
        return f"list price ${known:.2f}/h"
    return f"list price ${known:.2f}/h plus unknown prices" if known else "list price unknown"


def costs(plan: ClusterPlan) -> Iterator[str]:
    """Yield the prices of machines and services, and the storage's throughput."""
    price = hourly_price(plan)
    if price.usd or price.unpriced:
        yield f"machines{f' {_dollars(price.usd)}' if price.usd else ''}: {_price_source(plan)}"
    if spot_priced(plan):
        yield "Spot prices change at any time; the recorded ones were valid on the date of their source"
    priced = services(plan)
    for each in priced:
        listed = f"list price of {each.region}, dated {each.priced}"
        yield f"{each.name}: price unknown" if each.usd is None else f"{each.name} {_dollars(each.usd)}: {listed}"
    if priced or storage_mib_s(plan) is not None:
        yield _storage(plan)
    if priced or price.usd:
        yield f"not included: {traffic(plan.provider)}, {NOT_INCLUDED}"


def _dollars(usd: float) -> str:
    return f"${usd:.2f}/h (${usd * HOURS_PER_MONTH:,.0f} a month)"


def _price_source(plan: ClusterPlan) -> str:
    """Return the regions, date and sources of the machine prices, and the machine types whose price is unknown."""
    used, unpriced, parts = used_prices(plan), hourly_price(plan).unpriced, []
    if used:
        regions, dated = ", ".join(dict.fromkeys(row.region for row in used)), min(row.dated for row in used)
        parts.append(f"list prices of {regions}, read on {dated} from {', '.join(used_sources(plan))}")
    if unpriced:
        parts.append(f"price unknown for {', '.join(unpriced)}")
    return "; ".join(parts)


def _storage(plan: ClusterPlan) -> str:
    rate, gpus = storage_mib_s(plan), sum(host.machine.gpus for host in plan.nodes)
    if rate is None:
        return f"storage {plan.storage.kind}: maximum write throughput unknown"
    parts = [f"storage {plan.storage.kind}, {plan.storage.size_gib} GiB: maximum write throughput {rate:.0f} MiB/s"]
    if gpus:
        parts.append(f"{rate / gpus:.0f} MiB/s for each of {gpus} GPUs")
    return ", ".join(parts)


def _change(difference: Difference) -> str:
    if difference.new:
        return "new stack"
    parts = []
    if difference.usd_per_hour:
        parts.append(f"{difference.usd_per_hour:+.2f} $/h")
    elif difference.usd_per_hour is None and difference.known_usd_per_hour:
        parts.append(f"{difference.known_usd_per_hour:+.2f} $/h of known prices")
    for verb, hosts in (("adds", difference.hosts_added), ("removes", difference.hosts_removed)):
        if hosts:
            parts.append(f"{verb} {', '.join(host_ranges(hosts))}")
    if difference.files:
        parts.append("changes files on the nodes")
    return ", ".join(parts) or "no difference"


def _operations(report: Report) -> str:
    """Return the number of resources for each operation, such as '21 to create'."""
    counts = report.resources.by_operation if report.resources else {}
    return ", ".join(f"{count} unchanged" if op == "same" else f"{count} to {op}" for op, count in counts.items())


def host_ranges(hosts: Sequence[str]) -> list[str]:
    """Merge names with consecutive indices: opt-gpu-0 and opt-gpu-1 become opt-gpu-[0-1]."""
    runs: list[tuple[str, int, int]] = []
    for name in hosts:
        stem, _, index = name.rpartition("-")
        if not index.isdecimal():
            runs.append((name, -1, -1))
        elif runs and runs[-1][0] == stem and runs[-1][2] == int(index) - 1:
            runs[-1] = (stem, runs[-1][1], int(index))
        else:
            runs.append((stem, int(index), int(index)))
    return [
        stem if first < 0 else f"{stem}-{first}" if first == last else f"{stem}-[{first}-{last}]"
        for stem, first, last in runs
    ]


def findings(report: Report) -> list[Finding]:
    """Return errors, then warnings, then notes. Findings on prices and quotas are shown elsewhere."""
    shown = (each for each in report.description.findings if each.check not in {"price", "quota"})
    return sorted(shown, key=lambda each: list(Level).index(each.level))


def finding_line(found: Finding) -> str:
    check = f" [{found.check}]" if found.check else ""
    return found.problem.text(is_note=found.level is Level.INFO) + check


def quotas(report: Report) -> Iterator[Line | Rows]:
    """Yield the required quotas and notes on the account. If the account was read, usage and limits are included."""
    account, rows = report.account, []
    verdicts = {(each.quota, each.place): each for each in (account.verdicts if account else ())}
    for need in report.description.quota:
        verdict, cells = verdicts.get((need.quota, need.place)), ("", "", "")
        if verdict and verdict.short_by is not None:
            limit = "no limit" if verdict.limit is None else f"{verdict.limit:g}"
            used = "unknown" if verdict.used is None else f"{verdict.used:g}"
            cells = (used, limit, f"short by {verdict.short_by:g}" if verdict.short_by else "enough")
        elif verdict:
            cells = ("unknown", "unknown", f"run `{verdict.command}`")
        rows.append((need.quota, need.place, str(need.amount), *cells))
    if rows:
        width = len(_QUOTA_COLUMNS) if verdicts else 3
        yield Line("required quotas")
        yield Rows(_QUOTA_COLUMNS[:width], [row[:width] for row in rows])
    if account and account.problem:
        unread = f"quotas were not checked, because the account could not be read: {account.problem}"
        yield Line(unread, "note")
    for note in account.notes if account else ():
        yield Line(note, "note")


def _parts(report: Report) -> Iterator[Line | Rows]:
    """Yield everything about a stack except the headline and the diffs."""
    resources, plan = report.resources, report.description.plan
    if resources:
        yield from (Line(text, "error") for text in resources.errors)
        yield from (Line(text, "warning") for text in resources.warnings)
    yield from (Line(finding_line(each), each.level.value) for each in findings(report))
    if plan:
        region = f" in {plan.region}" if plan.region else ""
        yield Line(f"{plan.name}: {plan.provider}{region}, network {plan.network}, image {plan.image.name}")
        yield Rows(_HOST_COLUMNS, list(_host_rows(plan)))
        yield from map(Line, costs(plan))
        yield from map(Line, (*cost_limits(plan), *_people(plan)))
        sizes = ", ".join(f"{role} {size:,}" for role, size in report.description.user_data_bytes.items())
        yield Line(f"user-data: {sizes} of at most {platform_facts(plan.provider).user_data_limit:,} bytes")
    yield from quotas(report)
    if resources and resources.steps:
        yield Line(f"resources: {_operations(report)}")
        yield Rows(("type", "count"), [(kind, str(count)) for kind, count in resources.by_type.items()])
        if changed := [(step.op, step.type, step.name) for step in resources.changes if step.op != "create"]:
            yield Rows(("operation", "type", "name"), changed)


def cost_limits(plan: ClusterPlan) -> Iterator[str]:
    """Yield a line about the limits on the cluster's cost, if there are any."""
    limits = {"hour": plan.limits.max_usd_per_hour, "month": plan.limits.max_usd_per_month}
    if given := [f"${amount:,.10g} per {time}" for time, amount in limits.items() if amount is not None]:
        month = plan.limits.max_usd_per_month
        yield f"cost limit: {' and '.join(given)}{'' if month is None else _spent(month, known_usd(plan))}"


def _spent(month: float, usd: float) -> str:
    """Return when a month's limit is spent if all machines are on at `usd` per hour, and the effect."""
    effect = "no job starts and idle elastic machines stop, but others still cost money"
    if usd * 24 * _LONGEST_MONTH <= month:
        return f"; when the month's is spent, {effect}"
    return f"; if all machines are on, the month's is spent after {month / usd / 24:.1f} days; then {effect}"


def _people(plan: ClusterPlan) -> Iterator[str]:
    """Yield a line that lists the people, if there are any."""
    if plan.users:
        yield "people: " + ", ".join(user.name + (" (admin)" if user.admin else "") for user in plan.users)


def _host_rows(plan: ClusterPlan) -> Iterator[tuple[str, ...]]:
    for _, members in groupby(plan.hosts, key=lambda host: (host.role, host.group)):
        hosts = list(members)
        first, last, machine = hosts[0], hosts[-1], hosts[0].machine
        ips = f"{first.private_ip}" + ("" if first is last else f" to {last.private_ip}")
        gpus = f"{machine.gpus} x {machine.gpu_type}" if machine.gpus else "none"
        names = ", ".join(host_ranges([host.name for host in hosts]))
        yield names, ips, machine.name, gpus, machine.fabric, first.placement, capacity(plan, first)


def _diff_title(diff: FileDiff) -> str:
    return diff.file + (f" (same change in {', '.join(diff.same_in)})" if diff.same_in else "")


def show(preview: Preview, console: Console | None = None) -> None:
    """Print the preview on the terminal."""
    console = console or standard_console()
    console.print(Text(mode(preview), style="dim"))
    for report in preview.reports:
        style = "bold green" if report.fine else "bold red"
        console.print()
        console.print(Text.assemble((report.stack, "bold"), "  ", (state(report), style), f"  {headline(report)}"))
        show_parts(_parts(report), console)
        for diff in report.difference.files if report.difference else ():
            show_parts([Line(_diff_title(diff))], console)
            console.print(Padding(Syntax(diff.diff, "diff", background_color="default"), (0, 0, 0, 2)))


def show_parts(parts: Iterable[Line | Rows], console: Console) -> None:
    """Print lines and tables on the terminal."""
    for part in parts:
        if isinstance(part, Line):
            label = f"{_LABELS[part.level].lower()}: " if part.level else ""
            text = Text.assemble((label, _STYLES.get(part.level, "")), part.text)
            console.print(Padding(text, (0, 0, 0, 2)))
            continue
        drawn = Table(box=None, header_style="dim", pad_edge=False)
        for column in part.columns:
            drawn.add_column(column, overflow="fold")
        for row in part.rows:
            drawn.add_row(*map(Text, row))
        console.print(Padding(drawn, (0, 0, 0, 4)))


def as_markdown(preview: Preview, longest: int = LONGEST) -> str:
    """Return the comment. If it would exceed `longest` characters, the diffs and then whole blocks are omitted.

    Blocks of stacks without problems are omitted first.
    """
    reports, count = preview.reports, len(preview.reports)
    title = f"Preview of {count} stacks" if count > 1 else f"Preview of {_escaped(reports[0].stack)}"
    rows = [(report.stack, state(report), headline(report)) for report in reports]
    left_out = f"Prices do not include: network traffic, {NOT_INCLUDED}."
    summary = f"{_table(Rows(('stack', 'result', 'summary'), rows))}\n{left_out}\n\n"
    head = f"{MARKER}\n### {title}\n\n{_escaped(mode(preview))}\n\n{summary}"
    whole = head + "".join(_block(report, _markdown(report) + _diffs(report)) for report in reports)
    if len(whole) <= longest:
        return whole
    text = f"{head}\nThe comment would be too long: the diffs and perhaps some blocks are omitted.\n\n"
    for report in sorted(reports, key=lambda report: report.fine):
        if len(text + (block := _block(report, _markdown(report)))) <= longest:
            text += block
    return text[:longest]


def _block(report: Report, body: str) -> str:
    title = f"<b>{escape(report.stack)}</b>: {state(report)}, {escape(headline(report))}"
    return f"<details{'' if report.fine else ' open'}><summary>{title}</summary>\n\n{body}\n</details>\n\n"


def _markdown(report: Report) -> str:
    """Return the report's lines as list items, and its tables between empty lines."""
    text = ""
    for part in _parts(report):
        if isinstance(part, Rows):
            text += f"\n{_table(part)}\n"
            continue
        label = f"**{_LABELS[part.level]}**: " if part.level else ""
        # An engine message with several lines becomes a fenced block.
        fence = _fence(part.text)
        body = f"\n\n{fence}\n{part.text[:_LONGEST_DIFF]}\n{fence}\n" if "\n" in part.text else _escaped(part.text)
        text += f"- {label}{body}\n"
    return text


def _diffs(report: Report) -> str:
    parts = []
    for diff in report.difference.files if report.difference else ():
        text = diff.diff
        if len(text) > _LONGEST_DIFF:
            text = text[:_LONGEST_DIFF].rpartition("\n")[0] + _CUT
        fence = _fence(text)
        parts.append(f"\n{_escaped(_diff_title(diff))}\n\n{fence}diff\n{text}{fence}\n")
    return "".join(parts)


def _fence(text: str) -> str:
    """Return a code fence that does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence


def _table(table: Rows) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *([_cell(cell) for cell in row] for row in table.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """Escape Markdown and HTML, so that a stack file cannot add links or mentions to the comment."""
    escaped = escape(text, quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]#~@" else c for c in escaped)
