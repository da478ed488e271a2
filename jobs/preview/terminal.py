"""A preview for a terminal, with colours where it is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from jobs.preview import words
from jobs.preview.report import Preview, Report

_STATES = {"fine": "bold green", "refused": "bold red", "fails": "bold red"}
_LEVELS = {"error": "red", "warning": "yellow", "info": "dim"}
_LABELS = {"error": "error", "warning": "warning", "info": "note"}
_PIPE_WIDTH = 200


def show(preview: Preview, console: Console | None = None) -> None:
    """Print the preview: one block for each stack."""
    console = console or (Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH))
    console.print(Text(words.how(preview), style="dim"))
    for report in preview.reports:
        _show_stack(console, report)


def _show_stack(console: Console, report: Report) -> None:
    state = words.state(report)
    console.print()
    console.print(Text.assemble((report.stack, "bold"), "  ", (state, _STATES[state]), f"  {words.headline(report)}"))
    _show_plan(console, report)
    _show_resources(console, report)
    _show_quota(console, report)
    for problem in words.checks(report):
        label = Text(f"{_LABELS[problem['level']]}: ", style=_LEVELS[problem["level"]])
        console.print(Padding(label + Text(words.check_line(problem)), (0, 0, 0, 2)))
    for diff in report.difference["files"] if report.difference else ():
        also = f", and the same in {', '.join(diff['same_in'])}" if diff["same_in"] else ""
        _section(console, f"{diff['file']}{also}")
        console.print(Padding(Syntax(diff["diff"], "diff", background_color="default"), (0, 0, 0, 2)))


def _show_plan(console: Console, report: Report) -> None:
    plan = report.description["plan"]
    if plan is None:
        return
    place = f" in {plan['place']}" if plan["place"] else ""
    _section(console, f"{plan['name']}: {plan['provider']}{place}, network {plan['network']}, image {plan['image']}")
    _rows(console, words.HOST_COLUMNS, words.host_rows(plan))
    for line in words.costs(report.description):
        _section(console, line)
    _section(console, words.user_data(report))


def _show_resources(console: Console, report: Report) -> None:
    resources = report.resources
    if resources is None:
        return
    for level, said in (("error", resources.errors), ("warning", resources.warnings)):
        for text in said:
            console.print(Padding(Text(f"{level}: ", style=_LEVELS[level]) + Text(text), (0, 0, 0, 2)))
    if resources.steps:
        _section(console, f"resources: {words.operations(report)}")
        _rows(console, ("type", "count"), ((kind, str(count)) for kind, count in resources.by_type.items()))
    changed = [step for step in resources.changes if step.op != "create"]
    _rows(console, ("operation", "type", "name"), ((step.op, step.type, step.name) for step in changed))


def _show_quota(console: Console, report: Report) -> None:
    rows = list(words.quota_rows(report))
    if not rows:
        return
    _section(console, "quota")
    columns = words.QUOTA_COLUMNS if report.account and not report.account.problem else words.QUOTA_COLUMNS[:3]
    _rows(console, columns, (row[: len(columns)] for row in rows))
    if report.account and report.account.problem:
        console.print(Padding(Text(f"not compared: {report.account.problem}", style="yellow"), (0, 0, 0, 2)))
    for note in report.account.notes if report.account else ():
        console.print(Padding(Text(note, style="yellow"), (0, 0, 0, 2)))


def _section(console: Console, title: str) -> None:
    console.print(Padding(Text(title), (0, 0, 0, 2)))


def _rows(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    drawn = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    if drawn.row_count:
        console.print(Padding(drawn, (0, 0, 0, 4)))
