"""A preview as a pull request's comment: one collapsible block for each stack, and never more than GitHub takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from jobs.preview import words
from jobs.preview.report import Preview, Report

LONGEST = 65_000
"""GitHub refuses a comment of more than 65,536 characters; the rest is room for its own marks."""
MARKER = "<!-- trainyard-preview -->"
"""Begins the comment, so that the workflow finds the one of before and replaces it."""

_LABELS = {"error": "Error", "warning": "Warning", "info": "Note"}
_LONGEST_DIFF = 12_000
_CUT = "\n... cut here: `yard preview --against BASE` shows all of it\n"


def render(preview: Preview, longest: int = LONGEST) -> str:
    """Return the comment, at most `longest` characters: details of stacks are left out before any stack is."""
    head = f"{MARKER}\n### {_title(preview)}\n\n{_text(words.how(preview))}\n\n{_summary(preview)}"
    blocks = [_block(report, _plan_part(report) + _diff_part(report)) for report in preview.reports]
    full = head + "".join(blocks)
    if len(full) <= longest:
        return full
    note = "\nToo long for one comment: differences of rendered files, or whole blocks, are left out.\n"
    room = longest - len(head) - len(note)
    # The plans of stacks with problems first, then the other plans, then as many differences as there is room for.
    lean = [_block(report, _plan_part(report)) for report in preview.reports]
    order = sorted(range(len(lean)), key=lambda at: preview.reports[at].fine)
    kept: dict[int, str] = {}
    for at in order:
        if len(lean[at]) <= room:
            kept[at] = lean[at]
            room -= len(lean[at])
    for at in order:
        extra = len(blocks[at]) - len(lean[at])
        if at in kept and 0 <= extra <= room:
            kept[at] = blocks[at]
            room -= extra
    return (head + "".join(kept[at] for at in sorted(kept)) + note)[:longest]


def _title(preview: Preview) -> str:
    count = len(preview.reports)
    return f"Preview of {count} stacks" if count > 1 else f"Preview of {_text(preview.reports[0].stack)}"


def _summary(preview: Preview) -> str:
    rows = [(report.stack, words.state(report), words.headline(report)) for report in preview.reports]
    return _table(("stack", "", ""), rows) + "\n"


def _block(report: Report, body: str) -> str:
    # What is wrong stands open: nobody should have to look for it.
    opened = "" if report.fine else " open"
    title = f"<b>{escape(report.stack)}</b>: {words.state(report)}, {escape(words.headline(report))}"
    return f"<details{opened}><summary>{title}</summary>\n\n{body}\n</details>\n\n"


def _plan_part(report: Report) -> str:
    plan = report.description["plan"]
    parts = []
    if resources := report.resources:
        said = [*(("error", text) for text in resources.errors), *(("warning", text) for text in resources.warnings)]
        parts.append("".join(f"- **{_LABELS[level]}**: {_said(text)}\n" for level, text in said))
    if found := words.checks(report):
        parts.append("".join(f"- **{_LABELS[each['level']]}**: {_text(words.check_line(each))}\n" for each in found))
    if plan:
        parts.append(_table(words.HOST_COLUMNS, words.host_rows(plan)))
        lines = [*words.costs(report.description), words.user_data(report)]
        parts.append("".join(f"- {_text(line)}\n" for line in lines))
    if rows := list(words.quota_rows(report)):
        columns = words.QUOTA_COLUMNS if report.account and not report.account.problem else words.QUOTA_COLUMNS[:3]
        parts.append(_table(columns, (row[: len(columns)] for row in rows)))
    if report.account and report.account.problem:
        parts.append(f"Quota is not compared with the account: {_text(report.account.problem)}\n")
    if report.account and report.account.notes:
        parts.append("".join(f"- {_text(note)}\n" for note in report.account.notes))
    if report.resources and report.resources.steps:
        types = ((kind, str(count)) for kind, count in report.resources.by_type.items())
        parts.append(f"Resources: {words.operations(report)}\n\n{_table(('type', 'count'), types)}")
        changed = [(step.op, step.type, step.name) for step in report.resources.changes if step.op != "create"]
        parts.append(_table(("operation", "type", "name"), changed) if changed else "")
    return "\n".join(filter(None, parts))


def _said(text: str) -> str:
    """Return somebody else's words: several lines keep their form."""
    if "\n" not in text:
        return _text(text)
    fence = _fence(text)
    return f"\n\n{fence}\n{text[:_LONGEST_DIFF]}\n{fence}\n"


def _diff_part(report: Report) -> str:
    parts = []
    for diff in report.difference["files"] if report.difference else ():
        also = f", and the same in {', '.join(diff['same_in'])}" if diff["same_in"] else ""
        text = diff["diff"]
        if len(text) > _LONGEST_DIFF:
            text = text[:_LONGEST_DIFF].rpartition("\n")[0] + _CUT
        fence = _fence(text)
        parts.append(f"\n{_text(diff['file'] + also)}\n\n{fence}diff\n{text}{fence}\n")
    return "".join(parts)


def _fence(text: str) -> str:
    """Return a fence that the text cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """Return a text that markdown shows as it is: a stack file's author must not write links into the comment."""
    escaped = escape(text, quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]#~@" else c for c in escaped)
