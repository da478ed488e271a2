"""The page of `yard report`: one HTML file without scripts, which needs no network.

All texts are escaped, because the job's owner controls names, arguments and the files in the run folder. The page's
Content-Security-Policy also forbids scripts and requests.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

from trainyard.printable import printable
from yard.report.charts import bars, heat_map, line_chart
from yard.report.findings import findings, node_facts, results, slow_ranks, throttled_share
from yard.report.record import Gpu, NodeRecord, Numbers, Record
from yard.run.queue import explain
from yard.show import counted, duration

_HERE = Path(__file__).parent
_MOST_ROWS, _MOST_LINES = 64, 256
"""The most rows of a chart with a row for each rank, and the most lines of a table."""
_CAP = 3.0
"""Step times above this many medians are cut off, because the first step can take a minute."""
_FULL, _LABEL = 100.0, 22
"""The use of a GPU in percent at full load, and the most letters of a label in a chart."""
_NUMBER = re.compile(r"(\$?[\d,.]+( %)?)?")
"""A cell that is aligned to the right."""


def page(record: Record, written: float) -> str:
    """Return the report of a job. `written` is the current time in seconds since 1970."""
    sections = {
        "Findings": _findings(record),
        "Training": _training(record),
        "Ranks": _ranks(record),
        "Starts": _starts(record),
        "Goodput and cost": _goodput(record),
        "Nodes": _nodes(record),
        "Flight record": _flight_record(record),
    }
    job = record.job
    return document(
        title=f"Job {job.id}: {job.name}",
        subtitle=f"{explain(job).capitalize()}. {counted(job.nodes, 'node')} of cluster {record.cluster}, "
        f"{counted(record.world_size, 'rank')}, user {job.user}.",
        values=results(record),
        sections={name: "".join(parts) for name, parts in sections.items()},
        written=written,
    )


def document(
    *, title: str, subtitle: str, values: Mapping[str, str], sections: Mapping[str, str], written: float
) -> str:
    """Return a page. `sections` maps headings to HTML, and empty sections are omitted. All other texts are escaped."""
    ids = {name: name.lower().replace(" ", "-") for name, shown in sections.items() if shown}
    return Template((_HERE / "page.html").read_text()).substitute(
        title=_text(title),
        subtitle=_text(subtitle),
        style=(_HERE / "page.css").read_text(),
        links="".join(f'<li><a href="#{ids[name]}">{name}</a></li>' for name in ids),
        sections=_values(values) + "".join(
            f'<section aria-labelledby="{ids[name]}"><h2 id="{ids[name]}">{name}</h2>{sections[name]}</section>\n'
            for name in ids
        ),
        written=time_of(written),
    )  # fmt: skip


def paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _text(value: str) -> str:
    return escape(printable(value))


def time_of(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _values(values: Mapping[str, str]) -> str:
    items = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="values">{items}</dl>\n'


def table_of(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], marked: frozenset[int] = frozenset()
) -> str:
    """Return a table whose first column contains headings. Columns of numbers are aligned to the right."""
    cells = [list(row) for row in rows]
    if not cells:
        return ""
    right = [all(_NUMBER.fullmatch(row[at]) for row in cells) for at in range(len(columns))]
    styles = [' class="number"' if at and right[at] else "" for at in range(len(columns))]
    head = "".join(f'<th scope="col"{style}>{_text(name)}</th>' for name, style in zip(columns, styles, strict=True))
    body = "".join(
        ('<tr class="marked">' if index in marked else "<tr>")
        + f'<th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td{style}>{_text(cell)}</td>" for cell, style in zip(row[1:], styles[1:], strict=True))
        + "</tr>"
        for index, row in enumerate(cells[:_MOST_LINES])
    )
    kind = ' class="facts"' if len(columns) == 2 else ""  # noqa: PLR2004  (a name and a value)
    more = f" (the first {_MOST_LINES} of {len(cells)} lines)" if len(cells) > _MOST_LINES else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}"><table{kind}>'
        f"<caption>{_text(caption)}{more}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n"
    )


def charts(*figures: str) -> str:
    return f'<div class="charts">{"".join(figures)}</div>\n' if any(figures) else ""


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{_text(summary)}</summary>{body}</details>\n" if body else ""


def _findings(record: Record) -> Iterator[str]:
    found = findings(record)
    if not found:
        yield "<p>The records contain no sign of slow ranks, throttled GPUs, faults or lost time.</p>"
        return
    items = (f"<li><strong>{_text(row.kind)}</strong>{_text(row.text)}</li>" for row in found)
    yield f'<ul class="findings">{"".join(items)}</ul>'


def _training(record: Record) -> Iterator[str]:
    steps = record.steps
    if not steps.step:
        yield "<p>The job's program has recorded no steps (docs/jobs.md, goodput).</p>"
        return
    cap = None if steps.median_ms is None else steps.median_ms * _CAP
    times = {"mean": steps.step_ms, "slowest": steps.slowest_ms}
    rates = {"throughput": steps.tokens_per_s}
    yield charts(
        line_chart("Loss", ("step", "loss"), steps.step, {"loss": steps.loss}, zero=False),
        line_chart("Throughput", ("step", "tokens per second"), steps.step, rates, zero=True),
        line_chart("Time of a step", ("step", "ms"), steps.step, times, zero=True, cap=cap),
    )
    rows = zip(steps.step, steps.loss, steps.step_ms, steps.slowest_ms, steps.tokens_per_s, steps.data_ms, strict=True)
    columns = ("step", "loss", "mean step (ms)", "slowest step (ms)", "tokens per second", "wait for data (ms)")
    links = "".join(f'<li><a href="{_text(link)}" rel="noreferrer">{_text(link)}</a></li>' for link in record.links)
    yield f"<p>Tracking:</p><ul>{links}</ul>" if links else ""
    table = table_of("Steps, as in the charts", columns, [[_number(cell) for cell in row] for row in rows])
    yield _details("Values of the charts", table)


def _ranks(record: Record) -> Iterator[str]:
    own, slow = record.steps.rank_ms, slow_ranks(record)
    chosen = sorted(sorted(range(len(own)), key=lambda rank: -own[rank])[:_MOST_ROWS])
    times = [(f"rank {rank} {record.node_of(rank)}"[:_LABEL], own[rank], f"{own[rank]:.1f}") for rank in chosen]
    marked = frozenset(at for at, rank in enumerate(chosen) if rank in slow)
    gpus = [(node, gpu) for node in record.last for gpu in node.gpus]
    if len(gpus) <= _MOST_ROWS:
        each, use = "rank", [(_gpu_label(node, gpu)[:_LABEL], gpu.use) for node, gpu in gpus]
        power = [(_gpu_label(node, gpu)[:_LABEL], gpu.power) for node, gpu in gpus]
    else:
        nodes = [node for node in record.last if node.gpus][:_MOST_ROWS]
        each, use = "node", [(node.node[:_LABEL], _mean_row([gpu.use for gpu in node.gpus])) for node in nodes]
        power = [(node.node[:_LABEL], _mean_row([gpu.power for gpu in node.gpus])) for node in nodes]
    most = max((value for _, row in power for value in row if value is not None), default=0.0)
    cpus = [] if gpus else [(node.node[:_LABEL], node.cpu) for node in record.last][:_MOST_ROWS]
    times_of = [when for node in record.last for when in node.time if when is not None]
    span = (time_of(min(times_of, default=0)), time_of(max(times_of, default=0)))
    yield charts(
        bars("Own time of each rank in a step, without waiting for other ranks", times, "ms", marked),
        heat_map(f"GPU use of each {each} over time", use, most=_FULL, unit="%", span=span),
        heat_map(f"GPU power of each {each} over time", power, most=most, unit="W", span=span),
        heat_map("Processor use of each node over time", cpus, most=_FULL, unit="%", span=span),
    )
    lines = [
        (_gpu_label(node, gpu), node.node, percent(gpu.mean_use), _number(gpu.mean_power), _number(gpu.clock),
         percent(100 * throttled_share(gpu)), _number(gpu.temperature), _number(gpu.memory),
         f"{own[gpu.rank]:.1f}" if gpu.rank is not None and gpu.rank < len(own) else "")
        for node, gpu in gpus
    ]  # fmt: skip
    columns = ("rank", "node", "mean use", "mean power (W)", "clock (MHz)", "throttled", "highest temperature (C)",
               "memory (MiB)", "own time (ms)")  # fmt: skip
    bad = frozenset(at for at, (_, gpu) in enumerate(gpus) if gpu.rank in slow or throttled_share(gpu) > 0.1)  # noqa: PLR2004
    yield table_of("GPUs in the last start", columns, lines, bad)


def _gpu_label(node: NodeRecord, gpu: Gpu) -> str:
    return f"{node.node} GPU {gpu.index}" if gpu.rank is None else f"rank {gpu.rank}"


def _mean_row(rows: Sequence[Numbers]) -> Numbers:
    columns = ([value for value in column if value is not None] for column in zip(*rows, strict=False))
    return tuple(statistics.fmean(column) if column else None for column in columns)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _starts(record: Record) -> Iterator[str]:
    rows = [
        (str(start.number), time_of(start.begin), "" if start.end is None else duration(round(start.end - start.begin)),
         start.nodes, start.cause)
        for start in record.starts
    ]  # fmt: skip
    yield table_of("Starts of the job and why they ended", ("start", "time", "duration", "nodes", "end"), rows)
    lines = "".join(f"<li>{_text(line)}</li>" for line in record.messages)
    yield _details("Messages of yard in the job's log", f"<ol>{lines}</ol>" if lines else "")


def _goodput(record: Record) -> Iterator[str]:
    used, bill = record.goodput, record.bill
    if used is not None:
        parts = (("useful steps", used.useful_s), ("between starts", used.waiting_s), ("repeated steps", used.redone_s),
                 ("checkpoints", used.saving_s), ("start-up and other", used.other_s))  # fmt: skip
        rows = [(name, seconds, f"{duration(round(seconds))} ({seconds / used.wall_s:.0%})") for name, seconds in parts]
        yield charts(bars(f"Goodput {used.goodput:.0%} of {duration(round(used.wall_s))}", rows, "seconds"))
    if bill is not None:
        costs = {"useful steps": bill.useful_usd, "repeated steps": bill.redone_usd, "checkpoints": bill.saving_usd,
                 "start-up and other work": bill.other_usd, "all": bill.usd}  # fmt: skip
        lines = [(name, f"${usd:,.2f}") for name, usd in costs.items() if usd is not None]
        yield table_of(f"Cost at list prices, {bill.gpu_hours:.2f} GPU hours", ("for", "cost"), lines)
    if record.usd_per_hour is not None:
        yield f"<p>List price of the job's nodes: ${record.usd_per_hour:,.2f} per hour.</p>"


def _nodes(record: Record) -> Iterator[str]:
    rows = [
        (
            node.node,
            f"{node.ranks.start} to {node.ranks.stop - 1}" if node.ranks else "",
            node.hardware.get("GPU", ""),
            node.hardware.get("health", "unknown"),
            percent(_mean(node.cpu)),
        )
        for node in record.last
    ]
    yield table_of(
        "Placement in the last start", ("node", "ranks", "GPU", "health at the start", "mean processor use"), rows
    )
    for kind in ("hardware", "software"):
        yield table_of(f"{kind.capitalize()} of the nodes", ("fact", "value"), node_facts(record.last, kind).items())
    measured = [
        (" and ".join(row.nodes), f"{row.busbw:.4g}", _number(row.floor), row.algorithm) for row in record.busbw
    ]
    heads = ("nodes", "GB/s", "floor (GB/s)", "all-reduce algorithm")
    yield table_of("All-reduce bus bandwidth before the job", heads, measured)


def _mean(values: Numbers) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _flight_record(record: Record) -> Iterator[str]:
    for name, values in (("Code", record.code), ("Arguments", record.arguments), ("Environment", record.environment),
                         ("Placement", record.placement)):  # fmt: skip
        yield table_of(name, ("name", "value"), values.items())
    for host, facts in list(record.nccl.items())[:_MOST_ROWS]:
        yield _details(f"NCCL on {host}", table_of(f"NCCL's log on {host}", ("name", "value"), facts.items()))
