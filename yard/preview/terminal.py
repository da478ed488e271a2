"""Prints a preview on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from yard.preview import content
from yard.preview.report import Preview, Report
from yard.show import console as standard_console

_STATES = {"fine": "bold green", "refused": "bold red", "fails": "bold red"}
_LEVELS = {"error": "red", "warning": "yellow", "info": "dim"}


def show(preview: Preview, console: Console | None = None) -> None:
    console = console or standard_console()
    console.print(Text(content.mode(preview), style="dim"))
    for report in preview.reports:
        _show_stack(console, report)


def _show_stack(console: Console, report: Report) -> None:
    state = content.state(report)
    console.print()
    console.print(Text.assemble((report.stack, "bold"), "  ", (state, _STATES[state]), f"  {content.headline(report)}"))
    _show_plan(console, report)
    _show_resources(console, report)
    _show_quota(console, report)
    for problem in content.checks(report):
        _message(console, problem["level"], content.check_line(problem))
    for diff in report.difference["files"] if report.difference else ():
        _line(console, content.diff_title(diff))
        console.print(Padding(Syntax(diff["diff"], "diff", background_color="default"), (0, 0, 0, 2)))


def _show_plan(console: Console, report: Report) -> None:
    plan = report.description["plan"]
    if plan is None:
        return
    region = f" in {plan['place']}" if plan["place"] else ""
    _line(console, f"{plan['name']}: {plan['provider']}{region}, network {plan['network']}, image {plan['image']}")
    _rows(console, content.HOST_COLUMNS, content.host_rows(plan))
    for line in content.costs(report.description):
        _line(console, line)
    _line(console, content.user_data_sizes(report))


def _show_resources(console: Console, report: Report) -> None:
    resources = report.resources
    if resources is None:
        return
    for level, messages in (("error", resources.errors), ("warning", resources.warnings)):
        for message in messages:
            _message(console, level, message)
    if resources.steps:
        _line(console, f"resources: {content.operations(report)}")
        _rows(console, ("type", "count"), ((kind, str(count)) for kind, count in resources.by_type.items()))
    _rows(console, content.CHANGE_COLUMNS, content.change_rows(resources))


def _show_quota(console: Console, report: Report) -> None:
    columns, rows = content.quota_table(report)
    if not rows:
        return
    _line(console, "required quotas")
    _rows(console, columns, rows)
    for note in content.account_notes(report):
        _line(console, note, "yellow")


def _message(console: Console, level: str, text: str) -> None:
    label = Text("note: " if level == "info" else f"{level}: ", style=_LEVELS[level])
    console.print(Padding(label + Text(text), (0, 0, 0, 2)))


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, 2)))


def _rows(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    drawn = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    if drawn.row_count:
        console.print(Padding(drawn, (0, 0, 0, 4)))
